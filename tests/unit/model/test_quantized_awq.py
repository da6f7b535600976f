"""AWQ checkpoints: each weight is (value - zero) * scale, of values that the test packs as AutoAWQ does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo_inference.common.errors import ModelError, UnsupportedModelError

from .conftest import Typed, write_quantized
from .packing import MODULE, check_matrix, pack, read

ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def pack_gemm(values: np.ndarray) -> np.ndarray:
    """[n, rows] to [n, rows / 8]: the i-th four bits of a word are row ORDER[i]."""
    words = np.zeros((values.shape[0], values.shape[1] // 8), np.uint32)
    for word in range(words.shape[1]):
        for i, row in enumerate(ORDER):
            words[:, word] |= values[:, 8 * word + row].astype(np.uint32) << np.uint32(4 * i)
    return words.view(np.int32)


def pack_gemv(values: np.ndarray, words: int) -> np.ndarray:
    """[rows, n] to [rows, words]."""
    padded = np.zeros((len(values), words * 8), np.uint8)
    padded[:, : values.shape[1]] = values
    return np.ascontiguousarray(pack(padded.T, 4).T)


def pack_fast(values: np.ndarray) -> np.ndarray:
    """[rows, columns] to [rows / 4, columns]: each 256 values of four rows and 64 columns are 64 words of 16 bits."""
    rows, columns = values.shape
    words = np.zeros((rows // 4, columns), np.uint16)
    for row in range(rows):
        for column in range(columns):
            # Of 32 columns, those of a tensor core's thread come together: 0 1 8 9 16 17 24 25, 2 3 10 11 ...
            chunk, pair, half = column % 32 // 8, column % 8 // 2, column % 2
            inside = pair * 8 + chunk * 2 + half
            # ... and of each eight of them the even ones first.
            eight, at = divmod(inside, 8)
            inside = eight * 8 + (at // 2 if at % 2 == 0 else 4 + at // 2)
            flat = row % 4 * 64 + column % 64 // 32 * 32 + inside
            word = column // 64 * 64 + flat // 4
            words[row // 4, word] |= np.uint16(values[row, column]) << np.uint16(4 * (flat % 4))
    return words.view(np.int16)


def zero_words(group: int, groups: int) -> int:
    """Words for the zero points of a row in AutoAWQ's gemv."""
    step = {32: 4, 64: 2}.get(group, 1)
    words = (groups + 7) // 8
    return (words + step - 1) // step * step


def make(
    version: str, rows: int, columns: int, group: int, *, symmetric: bool = False
) -> tuple[dict[str, Typed], np.ndarray]:
    """A random matrix's tensors in a layout, and its weights."""
    rng = np.random.default_rng(1)
    width = columns if group == -1 else group
    groups = columns // width
    values = rng.integers(0, 16, (rows, columns)).astype(np.uint8)
    zeros = np.full((rows, groups), 8) if symmetric else rng.integers(0, 16, (rows, groups))
    scales = rng.uniform(0.01, 0.02, (rows, groups)).astype(np.float16)
    wide = scales.repeat(width, axis=1).astype(np.float64)
    weights = (values - zeros.repeat(width, axis=1)) * wide
    if version == "gemm":
        tensors: dict[str, Typed] = {
            "qweight": ("I32", pack_gemm(values.T)),
            "qzeros": ("I32", pack_gemm(zeros.T)),
            "scales": ("F16", scales.T),
        }
    else:
        words = zero_words(width, groups)
        padded = np.zeros((rows, words * 8), np.float16)
        padded[:, :groups] = scales
        if version == "gemv":
            tensors = {
                "qweight": ("I32", pack_gemv(values, columns // 8)),
                "qzeros": ("I32", pack_gemv(zeros, words)),
                "scales": ("F16", padded),
            }
        else:
            scaled = np.zeros_like(padded)
            scaled[:, :groups] = (-zeros * scales.astype(np.float32)).astype(np.float16)
            tensors = {
                "qweight": ("I16", pack_fast(values)),
                "scales": ("F16", padded.T),
                "qzeros": ("F16", scaled.T),
            }
            products = values.astype(np.float32) * wide.astype(np.float32)
            weights = products + scaled[:, :groups].repeat(width, axis=1).astype(np.float32)
    typed: dict[str, Typed] = {f"{MODULE}.{name}": typed for name, typed in tensors.items()}
    return typed, weights.astype(np.float32)


def described(version: str = "gemm", group: int = 32, **changes: Any) -> dict[str, Any]:
    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": version}
    return settings | changes


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("version", ["gemm", "gemv", "gemv_fast"])
def test_weights(tmp_path: Path, version: str, group: int) -> None:
    typed, weights = make(version, 48, 256, group)
    folder = write_quantized(tmp_path / "m", described(version.upper(), group), typed)
    matrix = check_matrix(folder, weights)
    assert matrix.grouping.kind == "int4"
    assert matrix.grouping.group == (256 if group == -1 else group)
    np.testing.assert_array_equal(
        matrix.columns(0, matrix.grouping.group).dequantize(), weights[:, : matrix.grouping.group]
    )


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("version", ["gemm", "gemv"])
def test_weights_without_zero_points(tmp_path: Path, version: str, stored: bool) -> None:
    typed, weights = make(version, 48, 128, 64, symmetric=True)
    if not stored:
        del typed[MODULE + ".qzeros"]
    folder = write_quantized(tmp_path / "m", described(version, 64, zero_point=False), typed)
    assert not check_matrix(folder, weights).grouping.minimum


def test_names_of_other_writers(tmp_path: Path) -> None:
    typed, weights = make("gemm", 48, 128, 64)
    for settings in (
        {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"},
        {"quant_method": "awq", "bits": 4, "group_size": 64, "sym": False, "checkpoint_format": "gemm"},
        {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq"}
        | {"bits": 4, "group_size": 64, "sym": False, "extra_config": {"lm_head": {"bits": 16}}},
    ):
        check_matrix(write_quantized(tmp_path / "m", settings, typed), weights)
    settings["extra_config"] = {MODULE: {"group_size": 32}}
    folder = write_quantized(tmp_path / "m", settings, typed)
    with pytest.raises(UnsupportedModelError, match=rf"extra_config quantizes {MODULE} differently"):
        read(folder, 48, 128)


def test_a_description_in_a_file_of_its_own(tmp_path: Path) -> None:
    typed, weights = make("gemm", 48, 128, 64)
    folder = write_quantized(tmp_path / "m", {}, typed)
    settings = '{"zero_point": true, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}'
    (folder / "quant_config.json").write_text(settings)
    check_matrix(folder, weights)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 3}, "config.json: quantization_config.bits 3 is not supported; supported are 4"),
        ({"version": "marlin"}, "version 'marlin' is not supported; supported are 'gemm', 'gemv', 'gemv_fast'"),
        ({"version": 2}, "version 2 is not supported"),
        ({"backend": "llm-awq"}, "backend 'llm-awq' is not supported; supported is 'autoawq'"),
        ({"group_size": -2}, "group_size is -2, expected a number of columns"),
        ({"zero_point": 1}, "zero_point is 1, expected true or false"),
        ({"modules_to_not_convert": 3}, "modules_to_not_convert is 3, expected a list of names"),
        ({"group_size": 48}, f"{MODULE} has 48 rows and 128 columns, expected .* columns in groups of 48"),
        ({"group_size": 64}, r"scales has shape \[4, 48\], expected \[2, 48\]"),
        ({"version": "gemv"}, r"qweight has shape \[128, 6\], expected \[48, 16\]"),
        ({"version": "gemv_fast"}, "qweight has dtype I32, expected I16"),
    ],
)
def test_settings_that_lie(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_quantized(tmp_path / "m", described() | changes, make("gemm", 48, 128, 32)[0])
    with pytest.raises(ModelError, match=message):
        read(folder, 48, 128, contents=False)


def test_contents_that_lie(tmp_path: Path) -> None:
    typed, _ = make("gemm", 48, 128, 32)
    folder = write_quantized(tmp_path / "m", described(zero_point=False), typed)
    with pytest.raises(ModelError, match=rf"tensor {MODULE}\.qzeros has the zero point \d+, expected 8 everywhere"):
        read(folder, 48, 128)
    read(folder, 48, 128, contents=False)
    typed[MODULE + ".scales"] = ("F16", np.full((4, 48), np.inf, np.float16))
    folder = write_quantized(tmp_path / "m", described(), typed)
    with pytest.raises(ModelError, match=rf"tensor {MODULE}\.scales has scales that are not finite"):
        read(folder, 48, 128)
    del typed[MODULE + ".qzeros"]
    typed[MODULE + ".scales"] = ("F16", np.ones((4, 48), np.float16))
    folder = write_quantized(tmp_path / "m", described(), typed)
    with pytest.raises(ModelError, match=rf"tensor {MODULE}\.qzeros is missing, and .*zero_point is true"):
        read(folder, 48, 128)
