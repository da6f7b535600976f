"""Models split over several GGUF files are one model; parts that are missing or of others are refused in words."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from octavo_inference.checkpoints.gguf import read_gguf
from octavo_inference.checkpoints.gguf_names import gguf_models, part_names
from octavo_inference.common.errors import ModelError
from octavo_inference.model_loader import load_model, load_text
from octavo_inference.models.weights import dequantize
from octavo_inference.tokenizer.assets import load_assets

from .conftest import TOKENS, write_gguf

Tensors = dict[str, np.ndarray]
FIRST, SECOND, THIRD = part_names("m-00001-of-00003.gguf")


@pytest.fixture
def parts(tmp_path: Path, tensors: Tensors, caplog: pytest.LogCaptureFixture) -> Path:
    """The folder of a model of 11 tensors in three files."""
    caplog.set_level(logging.ERROR)  # of gguf's writer
    write_gguf(tmp_path / "m.gguf", tensors, split=4)
    return tmp_path


def change(path: Path, key: str, value: Any, kind: gguf.GGUFValueType) -> None:
    """Replace a number in a part's metadata."""
    field = gguf.GGUFReader(path, "r+").fields[key]
    field.parts[field.data[0]][0] = value
    assert field.types == [kind]


@pytest.mark.parametrize("named", ["", FIRST, THIRD])
def test_all_parts_are_one_model(parts: Path, tensors: Tensors, tmp_path_factory: Any, named: str) -> None:
    whole = load_model(str(write_gguf(tmp_path_factory.mktemp("whole") / "m.gguf", tensors)))
    model = load_model(str(parts / named))
    assert model.text.path.name == FIRST
    assert model.config.layers == whole.config.layers
    for ours, theirs in zip(model.weights.tensors(), whole.weights.tensors(), strict=True):
        np.testing.assert_array_equal(dequantize(ours), dequantize(theirs))
    assert load_assets(str(parts / named)).tokenizer.id_to_token(1) == TOKENS[1]


def test_parts_after_the_first_say_only_which_they_are(parts: Path) -> None:
    """As llama-gguf-split writes them."""
    fields = gguf.GGUFReader(parts / SECOND).fields
    assert {name for name in fields if not name.startswith("GGUF.")} == {
        *("split.no", "split.count", "split.tensors.count"),
    }
    tensors = read_gguf(parts / FIRST).tensors
    assert {tensor.path.name for tensor in tensors.values()} == {FIRST, SECOND, THIRD}


def test_the_digest_is_of_all_parts(parts: Path, tensors: Tensors) -> None:
    before = load_text(str(parts)).config.digest
    assert load_text(str(parts)).config.digest == before
    with (parts / THIRD).open("r+b") as file:
        file.seek(-64, 2)
        file.write(b"x" * 64)
    assert load_text(str(parts)).config.digest != before


def test_missing_parts_are_named(parts: Path) -> None:
    (parts / SECOND).unlink()
    with pytest.raises(ModelError, match=rf"{FIRST}: is part 1 of 3, and {SECOND} is missing beside it"):
        load_model(str(parts))
    (parts / FIRST).unlink()
    with pytest.raises(ModelError, match=rf"{FIRST}: part 1 of 3 of the model is missing"):
        load_model(str(parts / THIRD))


def swap(parts: Path) -> None:
    (parts / SECOND).rename(parts / "other")
    (parts / THIRD).rename(parts / SECOND)
    (parts / "other").rename(parts / THIRD)


def repeat(parts: Path) -> None:
    shutil.copy(parts / SECOND, parts / THIRD)
    change(parts / THIRD, "split.no", 2, gguf.GGUFValueType.UINT16)


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (swap, rf"{SECOND}: split.no and split.count say part 3 of 3, expected part 2 of 3"),
        (
            lambda parts: change(parts / SECOND, "split.count", 4, gguf.GGUFValueType.UINT16),
            rf"{SECOND}: split.no and split.count say part 2 of 4, expected part 2 of 3",
        ),
        (
            lambda parts: change(parts / FIRST, "split.count", 2**16 - 1, gguf.GGUFValueType.UINT16),
            rf"{FIRST}: split.count is 65535, so the file must be named as one of that many parts: NAME-00001-of-65535",
        ),
        (
            lambda parts: change(parts / SECOND, "split.tensors.count", 12, gguf.GGUFValueType.INT32),
            rf"{SECOND}: split.tensors.count is 12, the 3 parts have 11 tensors",
        ),
        (repeat, rf"{FIRST}: split.tensors.count is 11, the 3 parts have 12 tensors"),
        (lambda parts: (parts / SECOND).write_bytes(b""), rf"{SECOND}: cannot be read"),
        (
            lambda parts: (parts / FIRST).rename(parts / "alone.gguf") and (parts / SECOND).unlink(),
            r"several GGUF files \(alone.gguf, m-00001-of-00003.gguf\)",
        ),
    ],
)
def test_parts_that_lie_are_refused(parts: Path, lie: Callable[[Path], object], message: str) -> None:
    lie(parts)
    with pytest.raises(ModelError, match=message):
        load_model(str(parts))


def test_parts_of_another_model_are_refused(parts: Path, tensors: Tensors) -> None:
    other = parts / "other"
    other.mkdir()
    write_gguf(other / "m.gguf", tensors, split=4, architecture="qwen2")
    shutil.copy(other / FIRST, parts / SECOND)
    change(parts / SECOND, "split.no", 1, gguf.GGUFValueType.UINT16)
    with pytest.raises(ModelError, match=rf"{SECOND}: general.architecture is 'qwen2', another than that of .*{FIRST}"):
        load_model(str(parts))


def test_a_tensor_in_two_parts_is_refused(parts: Path) -> None:
    repeat(parts)
    for name in (FIRST, SECOND, THIRD):
        change(parts / name, "split.tensors.count", 12, gguf.GGUFValueType.INT32)
    with pytest.raises(ModelError, match=rf"{THIRD}: damaged GGUF file: tensor blk.\S+ occurs twice"):
        load_model(str(parts))


def test_files_that_are_published_beside_models_are_left_out(tmp_path: Path, tensors: Tensors) -> None:
    write_gguf(tmp_path / "m-Q8_0.gguf", tensors)
    for name in ("imatrix.gguf", "m-imatrix.gguf", "m.imatrix.gguf", "mmproj-BF16.gguf", "m.imatrix", "imatrix.dat"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert load_model(str(tmp_path)).text.name == "m-Q8_0"


@pytest.mark.parametrize("kind", ["imatrix", "mmproj", "adapter", 3])
def test_what_is_no_model_is_refused(tmp_path: Path, tensors: Tensors, kind: Any) -> None:
    def declare(writer: gguf.GGUFWriter) -> None:
        (writer.add_string if isinstance(kind, str) else writer.add_uint32)("general.type", kind)

    path = write_gguf(tmp_path / "imatrix.gguf", tensors, extra=declare)
    with pytest.raises(ModelError, match=rf"imatrix.gguf: general.type is {kind!r}, expected a model"):
        load_model(str(path))


def test_models_among_names() -> None:
    assert gguf_models(["b-00002-of-00002.gguf", "a-Q4_0.gguf", "mmproj-a.gguf", "b-00001-of-00002.gguf", "x"]) == [
        ("a-Q4_0.gguf",),
        ("b-00001-of-00002.gguf", "b-00002-of-00002.gguf"),
    ]
    # A model that was quantized with an importance matrix.
    made_with = [f"a{sep}imatrix-Q4_0.gguf" for sep in "-."]
    beside = ["a-imatrix.gguf", "a.imatrix.gguf", "imatrix.gguf", "mmproj-a.gguf", "a-mmproj.gguf"]
    assert gguf_models(made_with + beside) == [(name,) for name in made_with]
    assert gguf_models(["a-imatrix.gguf"]) == [("a-imatrix.gguf",)]
    assert part_names("a-00003-of-00002.gguf") == ("a-00003-of-00002.gguf",)


def test_a_set_of_one_file_is_a_model(tmp_path: Path, tensors: Tensors) -> None:
    path = write_gguf(tmp_path / "m-00001-of-00001.gguf", tensors, extra=lambda w: w.add_uint16("split.count", 1))
    assert len(read_gguf(path).headers) == 1
