"""bitsandbytes checkpoints: each weight is its level times the scale of its block, or its int8 times its row's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo_inference.common.errors import ModelError, UnsupportedModelError

from .conftest import Typed, write_quantized
from .packed_layers import bnb_eight_bits, bnb_four_bits
from .quantized_modules import MODULE, check_matrix, named, read

WEIGHT = MODULE + ".weight"


def described(**changes: Any) -> dict[str, Any]:
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    return settings | changes


def four_bits(*args: Any, **kwargs: Any) -> tuple[dict[str, Typed], np.ndarray]:
    """A layer of `packed_layers` with whole names."""
    parts, weights = bnb_four_bits(*args, **kwargs)
    return named(parts), weights


def change_state(typed: dict[str, Typed], **changes: Any) -> None:
    name = WEIGHT + ".quant_state.bitsandbytes__nf4"
    state = json.loads(typed[name][1].tobytes()) | changes
    typed[name] = ("U8", np.frombuffer(json.dumps(state).encode(), np.uint8))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("block", [64, 128, 4096])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_blocks(tmp_path: Path, kind: str, block: int, nested: bool) -> None:
    typed, weights = four_bits(48, 256, kind, block, nested=nested, nested_block=32)
    folder = write_quantized(tmp_path / "m", described(bnb_4bit_quant_type=kind), typed)
    matrix = check_matrix(folder, weights)
    assert matrix.grouping.kind == "code4"
    assert matrix.grouping.group == min(block, 256)
    np.testing.assert_array_equal(matrix.columns(0, 256).dequantize(), weights)


@pytest.mark.parametrize(("columns", "block", "group"), [(96, 64, 32), (96, 128, 32), (80, 64, 16), (160, 4096, 32)])
def test_blocks_that_go_on_in_the_next_row(tmp_path: Path, columns: int, block: int, group: int) -> None:
    typed, weights = four_bits(51, columns, block=block, nested=True)
    folder = write_quantized(tmp_path / "m", described(), typed)
    assert check_matrix(folder, weights).grouping.group == group


def test_storage_of_another_type(tmp_path: Path) -> None:
    typed, weights = four_bits(48, 128)
    typed[WEIGHT] = ("BF16", typed[WEIGHT][1].ravel().view(np.uint16)[:, None])
    folder = write_quantized(tmp_path / "m", described(bnb_4bit_quant_storage="bfloat16"), typed)
    check_matrix(folder, weights)


def test_int8(tmp_path: Path) -> None:
    parts, weights = bnb_eight_bits(48, 96)
    typed = named(parts)
    folder = write_quantized(tmp_path / "m", {"quant_method": "bitsandbytes", "load_in_8bit": True}, typed)
    matrix = check_matrix(folder, weights)
    assert matrix.grouping.kind == "int8"
    assert matrix.grouping.group == 96
    typed[MODULE + ".weight_format"] = ("U8", np.full((), 2, np.uint8))
    folder = write_quantized(tmp_path / "m", described(), typed)
    with pytest.raises(UnsupportedModelError, match=rf"tensor {MODULE}\.weight_format is 2, supported is 0"):
        read(folder, 48, 96)
    typed[MODULE + ".SCB"] = ("F32", np.full(48, np.nan, np.float32))
    folder = write_quantized(tmp_path / "m", described(), typed)
    with pytest.raises(ModelError, match=rf"tensor {MODULE}\.SCB has scales that are not finite"):
        read(folder, 48, 96)
    read(folder, 48, 96, contents=False)


def test_settings_without_a_method(tmp_path: Path) -> None:
    typed, weights = four_bits(48, 128)
    check_matrix(write_quantized(tmp_path / "m", {"load_in_4bit": True}, typed), weights)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blocksize": 63}, "nf4 has blocksize 63, expected one of 32, 64, 128"),
        ({"blocksize": True}, "nf4 has blocksize True"),
        ({"blocksize": 128}, r"absmax has shape \[96\], expected \[48\]"),
        ({"shape": [64, 96]}, r"nf4 has shape \[64, 96\], expected \[48, 128\]"),
        ({"quant_type": "fp4"}, "nf4 has quant_type 'fp4', expected nf4"),
        ({"nested_blocksize": 0}, "nf4 has nested_blocksize 0, expected a size"),
        ({"nested_blocksize": 2}, r"nested_absmax has shape \[1\], expected \[48\]"),
        ({"nested_offset": None}, "nf4 has nested_offset None, expected a number"),
        ({"nested_offset": 1e300}, r"nf4 has nested_offset 1e\+300, expected a number"),
    ],
)
def test_states_that_lie(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    typed, _ = four_bits(48, 128, nested=True)
    change_state(typed, **changes)
    folder = write_quantized(tmp_path / "m", described(), typed)
    with pytest.raises(ModelError, match=message):
        read(folder, 48, 128)
    read(folder, 48, 128, contents=False)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (".absmax", ("F32", np.full(96, np.nan, np.float32)), "absmax has scales that are not finite"),
        (".absmax", ("F32", np.ones(95, np.float32)), r"absmax has shape \[95\], expected \[96\]"),
        (".quant_map", ("F32", np.full(16, np.inf, np.float32)), "quant_map has scales that are not finite"),
        (".quant_map", ("F32", np.ones(8, np.float32)), r"quant_map has shape \[8\], expected \[16\]"),
        (".quant_state.bitsandbytes__nf4", ("U8", np.zeros(9, np.uint8)), "not JSON in tensor .*nf4"),
        (".quant_state.bitsandbytes__nf4", ("F32", np.zeros(9, np.float32)), "nf4 is not a JSON text in bytes"),
        ("", ("U8", np.zeros((48, 128), np.uint8)), "has 6144 bytes, expected 3072 of 4 bits for 48 rows of 128"),
    ],
)
def test_tensors_that_lie(tmp_path: Path, name: str, value: Typed, message: str) -> None:
    typed, _ = four_bits(48, 128)
    typed[WEIGHT + name] = value
    folder = write_quantized(tmp_path / "m", described(), typed)
    with pytest.raises(ModelError, match=message):
        read(folder, 48, 128)


def test_tensors_and_settings_that_are_missing_or_unknown(tmp_path: Path) -> None:
    typed, _ = four_bits(48, 128)
    del typed[WEIGHT + ".quant_state.bitsandbytes__nf4"]
    folder = write_quantized(tmp_path / "m", described(), typed)
    with pytest.raises(ModelError, match=r"quant_state.bitsandbytes__nf4 \(or fp4\) is missing"):
        read(folder, 48, 128)
    folder = write_quantized(tmp_path / "m", described(bnb_4bit_quant_type="af4"), typed)
    with pytest.raises(UnsupportedModelError, match="bnb_4bit_quant_type 'af4' is not supported; supported are 'nf4'"):
        read(folder, 48, 128)
    folder = write_quantized(tmp_path / "m", described(llm_int8_skip_modules=[1]), typed)
    with pytest.raises(ModelError, match=r"llm_int8_skip_modules is \[1\], expected a list of names"):
        read(folder, 48, 128)
