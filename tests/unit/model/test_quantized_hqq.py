"""HQQ checkpoints: each weight is (value - zero) * scale, of values that the test packs as hqq does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo_inference.common.errors import ModelError

from .conftest import Typed, write_quantized
from .packed_layers import hqq
from .quantized_modules import MODULE, check_matrix, named, read


def make(*args: Any, **kwargs: Any) -> tuple[dict[str, Typed], np.ndarray]:
    """A layer of `packed_layers.hqq` with whole names."""
    parts, weights = hqq(*args, **kwargs)
    return named(parts), weights


def described(bits: Any = 4, group: Any = 64, axis: Any = 1) -> dict[str, Any]:
    params = {"nbits": bits, "group_size": group, "axis": axis, "view_as_float": False}
    return {"quant_method": "hqq", "quant_config": {"weight_quant_params": params}, "skip_modules": ["lm_head"]}


@pytest.mark.parametrize("group", [16, 64, 128])
@pytest.mark.parametrize("bits", [8, 4, 3, 2, 1])
def test_groups_along_rows(tmp_path: Path, bits: int, group: int) -> None:
    typed, weights = make(48, 256, bits, group)
    folder = write_quantized(tmp_path / "m", described(bits, group), typed)
    matrix = check_matrix(folder, weights)
    assert matrix.grouping.kind == ("int8" if bits == 8 else "int4")
    assert matrix.grouping.group == group
    assert matrix.grouping.minimum


@pytest.mark.parametrize("bits", [8, 4, 3, 2, 1])
def test_groups_that_go_on_in_the_next_row(tmp_path: Path, bits: int) -> None:
    typed, weights = make(48, 96, bits, 64)
    folder = write_quantized(tmp_path / "m", described(bits), typed)
    assert check_matrix(folder, weights).grouping.group == 32


@pytest.mark.parametrize("bits", [8, 4, 3, 2, 1])
def test_groups_across_rows(tmp_path: Path, bits: int) -> None:
    typed, weights = make(48, 96, bits, 64, axis=0)
    folder = write_quantized(tmp_path / "m", described(bits, axis=0), typed)
    assert check_matrix(folder, weights).grouping.group == 1


def test_values_viewed_as_floats(tmp_path: Path) -> None:
    for bits in (8, 4, 3, 2, 1):
        typed, weights = make(48, 128, bits, 64)
        packed = typed[MODULE + ".W_q"][1]
        typed[MODULE + ".W_q"] = ("F16", packed.view(np.float16))
        check_matrix(write_quantized(tmp_path / "m", described(bits), typed), weights)
    for bits in (4, 3):  # of which 16 rows have the same size
        typed, weights = make(48, 96, bits, 16, axis=0)
        typed[MODULE + ".W_q"] = ("F16", typed[MODULE + ".W_q"][1].view(np.float16))
        check_matrix(write_quantized(tmp_path / "m", described(bits, 16, 0), typed), weights)


def test_settings_of_a_module(tmp_path: Path) -> None:
    typed, weights = make(48, 128, 2, 32)
    settings = described()
    settings["quant_config"] = {"mlp.down_proj": {"weight_quant_params": {"nbits": 1.58, "group_size": 32}}}
    check_matrix(write_quantized(tmp_path / "m", settings, typed), weights)
    settings["quant_config"]["mlp.down_proj"]["weight_quant_params"]["group_size"] = 64
    folder = write_quantized(tmp_path / "m", settings, typed)
    with pytest.raises(ModelError, match=rf"weight_quant_params.group_size is 64, the sizes of {MODULE}'s .* say 32"):
        read(folder, 48, 128)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (described(8), r"config.json: quantization_config.quant_config.weight_quant_params.nbits is 8, .* say 4"),
        (described("4"), "nbits is '4'"),
        (described(group=[64]), r"group_size is \[64\]"),
        (described(axis=0), "axis is 0, the sizes of .* say 1"),
        (described() | {"quant_config": []}, r"quant_config is \[\], expected an object"),
        (described() | {"quant_config": {"weight_quant_params": 3}}, "weight_quant_params 3, expected an object"),
        (described() | {"skip_modules": 3}, "skip_modules is 3, expected a list of names"),
    ],
)
def test_settings_that_lie(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    folder = write_quantized(tmp_path / "m", settings, make(48, 128, 4, 64)[0])
    with pytest.raises(ModelError, match=message):
        read(folder, 48, 128, contents=False)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (".scale", ("F16", np.full((96, 1), np.nan, np.float16)), "scale has scales that are not finite"),
        (".scale", ("F16", np.ones(96, np.float16)), r"scale has shape \[96\] F16, expected a column or a row"),
        (
            ".scale",
            ("F16", np.ones((95, 1), np.float16)),
            r"scale has shape \[95, 1\] F16, expected .* of 6144 weights",
        ),
        (".scale", ("I32", np.ones((96, 1), np.int32)), r"scale has shape \[96, 1\] I32"),
        (".zero", ("F16", np.full((96, 1), np.inf, np.float16)), "zero has scales that are not finite"),
        (".zero", ("F16", np.ones((1, 96), np.float16)), r"zero has shape \[1, 96\], expected \[96, 1\]"),
        (".W_q", ("U8", np.ones((50, 64), np.uint8)), "W_q has 3200 bytes, expected those of 1, 2, 3, 4, 8 bits"),
        (".nbits", ("I32", np.array(8, np.int32)), "nbits is 8, the sizes of .* say 4"),
        (".group_size", ("I32", np.array(32, np.int32)), "group_size is 32, the sizes of .* say 64"),
        (".axis", ("I32", np.array(0, np.int32)), "axis is 0, the sizes of .* say 1"),
        (".shape", ("I64", np.array([128, 48])), r"shape is \[128, 48\], the sizes of .* say \[48, 128\]"),
    ],
)
def test_tensors_that_lie(tmp_path: Path, name: str, value: Typed, message: str) -> None:
    typed, _ = make(48, 128, 4, 64)
    typed[MODULE + name] = value
    folder = write_quantized(tmp_path / "m", described(), typed)
    with pytest.raises(ModelError, match=message):
        read(folder, 48, 128)


def test_tensors_that_are_missing(tmp_path: Path) -> None:
    for name in ("scale", "zero"):
        typed, _ = make(48, 128, 4, 64)
        del typed[f"{MODULE}.{name}"]
        folder = write_quantized(tmp_path / "m", described(), typed)
        with pytest.raises(ModelError, match=rf"m: tensor {MODULE}\.{name} is missing"):
            read(folder, 48, 128)
