"""GGUF files that `octavo-server quantize` writes from GGUF files."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest

from octavo_inference.checkpoints.gguf import read_gguf
from octavo_inference.checkpoints.gguf_header import Strings
from octavo_inference.model_loader import LoadedModel, load_model

from ..model.conftest import matrices, write_gguf  # noqa: TID252 -- tests are no package

Quantize = Callable[..., SimpleNamespace]
Kind = gguf.GGMLQuantizationType
FORMS = {Kind.Q4_0: [], Kind.Q4_1: ["--zero-points"], Kind.Q8_0: ["--format", "int8"]}
BITS = {Kind.Q4_0: 4.5, Kind.Q4_1: 5.0, Kind.Q8_0: 8.5}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "source.gguf", matrices(np.random.default_rng(0)), Kind.BF16)


@pytest.fixture
def rounded(file: Path, quantize: Quantize, tmp_path: Path) -> Quantize:
    """The command on this file, with a text of its few letters."""
    text = tmp_path / "letters.txt"
    text.write_text("".join(np.random.default_rng(2).choice(list(string.ascii_lowercase), 900)))

    def run(target: Path, *arguments: str) -> SimpleNamespace:
        return quantize(target, *arguments, "--calibration", str(text), source=file)

    return run


@pytest.mark.parametrize("kind", FORMS)
def test_matrices_of_layers_are_rounded_and_all_else_stays(
    kind: Kind, file: Path, rounded: Quantize, tmp_path: Path
) -> None:
    target = tmp_path / "out.gguf"
    result = rounded(target, *FORMS[kind])
    assert result.status == 0, result.err
    assert f"bits per weight of the matrices  {BITS[kind]:.2f}" in result.out
    before, after = read_gguf(file), read_gguf(target)
    assert before.tensors.keys() == after.tensors.keys()
    for name, tensor in before.tensors.items():
        found = after.tensors[name]
        if name.startswith("blk.") and not name.endswith("norm.weight"):
            values = gguf.quants.dequantize(tensor.data, Kind(tensor.type_id))
            np.testing.assert_array_equal(found.data, gguf.quants.quantize(values, kind))
            assert found.type_name == kind.name
        else:
            np.testing.assert_array_equal(found.data, tensor.data)
            assert found.type_name == tensor.type_name
    own = {"general.file_type", "general.quantization_version"}
    assert after.metadata.keys() - own == before.metadata.keys() - own
    for key in before.metadata.keys() - own:
        values = [each.metadata[key] for each in (before, after)]
        assert plain(values[0]) == plain(values[1]), key
    assert after.metadata["general.file_type"] == int(gguf.LlamaFileType[f"MOSTLY_{kind.name}"])
    loaded = load_model(str(target))
    assert isinstance(loaded, LoadedModel)
    assert loaded.text.chat_template == "{{ messages }}"
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


def plain(value: object) -> object:
    return value.read() if isinstance(value, Strings) else value.tolist() if isinstance(value, memoryview) else value


def test_eight_bits_are_nearer_than_four(rounded: Quantize, tmp_path: Path) -> None:
    divergences = {}
    for kind, arguments in FORMS.items():
        result = rounded(tmp_path / f"{kind.name}.gguf", *arguments)
        line = next(line for line in result.out.splitlines() if line.startswith("mean KL"))
        divergences[kind] = float(line.split()[-1])
    assert 0 < divergences[Kind.Q8_0] < divergences[Kind.Q4_1]
    assert divergences[Kind.Q8_0] < divergences[Kind.Q4_0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "fp8"], "--format: fp8, and GGUF has no such format: choose int4 or int8, or name a folder"),
        (
            ["--method", "awq"],
            "--method: awq is for folders, and TARGET is a GGUF file: leave --method out, or name a folder",
        ),
        (
            ["--group-size", "64"],
            "--group-size: 64, and blocks of GGUF have 32 columns: leave --group-size out, or name a folder",
        ),
        (["--keep", "auto"], "--keep: is for folders, and TARGET is a GGUF file: leave --keep out"),
        (
            ["--format", "int8", "--zero-points"],
            "--zero-points: for --format int4, and the format is int8: leave --zero-points out",
        ),
    ],
)
def test_settings_that_gguf_does_not_have(
    arguments: list[str], message: str, file: Path, quantize: Quantize, tmp_path: Path
) -> None:
    result = quantize(tmp_path / "out.gguf", *arguments, source=file)
    assert (result.status, result.err) == (2, f"octavo-server quantize: {message}\n")


def test_a_folder_cannot_become_a_file(source: Path, quantize: Quantize, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    message = f"{target}: a GGUF file needs a GGUF source, and {source} is a folder"
    assert quantize(target).err == f"octavo-server quantize: {message}\n"


def test_a_file_that_exists_is_not_replaced(file: Path, rounded: Quantize) -> None:
    before = file.read_bytes()
    result = rounded(file)
    message = f"{file}: exists already: name another file, or remove it"
    assert (result.status, result.err) == (2, f"octavo-server quantize: {message}\n")
    assert file.read_bytes() == before
