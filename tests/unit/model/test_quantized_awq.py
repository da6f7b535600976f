"""AWQ checkpoints: each weight is (value - zero) * scale, of values that the test packs as AutoAWQ does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo_inference.common.errors import ModelError, UnsupportedModelError

from .conftest import Typed, write_quantized
from .packed_layers import awq
from .quantized_modules import MODULE, check_matrix, named, read


def make(*args: Any, **kwargs: Any) -> tuple[dict[str, Typed], np.ndarray]:
    """A layer of `packed_layers.awq` with whole names."""
    parts, weights = awq(*args, **kwargs)
    return named(parts), weights


def described(version: str = "gemm", group: int = 32, **changes: Any) -> dict[str, Any]:
    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": version}
    return settings | changes


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("version", ["gemm", "gemv", "gemv_fast"])
def test_weights(tmp_path: Path, version: str, group: int) -> None:
    typed, weights = make(48, 256, version, group)
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
    typed, weights = make(48, 128, version, 64, symmetric=True)
    if not stored:
        del typed[MODULE + ".qzeros"]
    folder = write_quantized(tmp_path / "m", described(version, 64, zero_point=False), typed)
    assert not check_matrix(folder, weights).grouping.minimum


def test_names_of_other_writers(tmp_path: Path) -> None:
    typed, weights = make(48, 128, "gemm", 64)
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
    typed, weights = make(48, 128, "gemm", 64)
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
    folder = write_quantized(tmp_path / "m", described() | changes, make(48, 128, "gemm", 32)[0])
    with pytest.raises(ModelError, match=message):
        read(folder, 48, 128, contents=False)


def test_contents_that_lie(tmp_path: Path) -> None:
    typed, _ = make(48, 128, "gemm", 32)
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
