"""Writers of small quantized checkpoints, and an example of each method: settings, and tensors of a layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import packed_layers
from .conftest import Typed, linear_modules, write_quantized

Tensors = dict[str, np.ndarray]
Layer = tuple[dict[str, Typed], np.ndarray]
"""Tensors of a linear layer by the last part of their name, and the weights that they stand for."""
Make = Callable[[int, int], Layer]
"""`make(rows, columns)`."""
DOWN, UP, Q = "model.layers.0.mlp.down_proj", "model.layers.0.mlp.up_proj", "model.layers.0.self_attn.q_proj"
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def checkpoint(folder: Path, settings: dict[str, Any], tensors: Tensors, make: Make, **changes: Any) -> Tensors:
    """Write a model whose linear layers `make(rows, columns)` gives. Returns the weights by layer."""
    typed: dict[str, Typed] = {name: ("F32", values) for name, values in tensors.items()}
    expected = {}
    for module in linear_modules(tensors):
        parts, expected[module] = make(*typed.pop(module + ".weight")[1].shape)
        typed |= {f"{module}.{name}": part for name, part in parts.items()}
    write_quantized(folder, settings, typed, **changes)
    return expected


def words(values: np.ndarray, bits: int) -> np.ndarray:
    """Values of rows in int32 words, as many as are whole in one, the first in the lowest bits."""
    count = 32 // bits
    packed = np.zeros((len(values), math.ceil(values.shape[1] / count)), np.uint32)
    for column in range(values.shape[1]):
        packed[:, column // count] |= values[:, column].astype(np.uint32) << np.uint32(bits * (column % count))
    return packed.view(np.int32)


def float8(rng: np.random.Generator, *shape: int, least: float = -3.0, most: float = 3.0) -> tuple[Typed, np.ndarray]:
    """Numbers of float8_e4m3fn as stored, and as they are."""
    values = torch.from_numpy(rng.uniform(least, most, shape)).to(torch.float8_e4m3fn)
    return ("F8_E4M3", values.view(torch.uint8).numpy()), values.to(torch.float32).numpy()


def float4(rng: np.random.Generator, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Values as stored, two in a byte, and as numbers."""
    values = rng.integers(0, 16, (rows, columns))
    return (values[:, ::2] | values[:, 1::2] << 4).astype(np.uint8), E2M1[values]


def exponents(rng: np.random.Generator, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Powers of two of groups of 32 columns, as stored and one for each column."""
    bits = rng.integers(115, 123, (rows, columns // 32)).astype(np.uint8)
    return bits, (2.0 ** (bits.astype(np.int64) - 127)).repeat(32, axis=1)


def int4_layer(rows: int, columns: int) -> Layer:
    """compressed-tensors: int4 in groups of 32 columns."""
    rng = np.random.default_rng(rows)
    values = rng.integers(0, 16, (rows, columns))
    scale = rng.uniform(0.01, 0.02, (rows, columns // 32)).astype(np.float32)
    parts: dict[str, Typed] = {"weight_packed": ("I32", words(values, 4)), "weight_scale": ("F32", scale)}
    return parts, (values - 8) * scale.repeat(32, axis=1)


def float8_layer(rows: int, columns: int) -> Layer:
    """FP8: one scale for a layer, and one for its inputs."""
    rng = np.random.default_rng(rows)
    stored, values = float8(rng, rows, columns)
    scale = rng.uniform(0.01, 0.02, (1,)).astype(np.float32)
    return {"weight": stored, "weight_scale": ("F32", scale), "input_scale": ("F32", scale)}, values * scale


def nvfp4_layer(rows: int, columns: int) -> Layer:
    """ModelOpt: float4 in groups of 16 columns."""
    rng = np.random.default_rng(rows)
    packed, values = float4(rng, rows, columns)
    stored, scale = float8(rng, rows, columns // 16, least=1, most=400)
    whole = rng.uniform(1e-5, 1e-4, ()).astype(np.float32)
    parts: dict[str, Typed] = {
        "weight": ("U8", packed),
        "weight_scale": stored,
        "weight_scale_2": ("F32", whole),
        "input_scale": ("F32", whole),
    }
    return parts, values * (scale * whole).repeat(16, axis=1)


def mxfp4_layer(rows: int, columns: int) -> Layer:
    """gpt-oss: float4 in blocks of 32 columns."""
    rng = np.random.default_rng(rows)
    packed, values = float4(rng, rows, columns)
    bits, scale = exponents(rng, rows, columns)
    parts: dict[str, Typed] = {
        "weight_blocks": ("U8", packed.reshape(rows, columns // 32, 16)),
        "weight_scales": ("U8", bits),
    }
    return parts, values * scale


def int8_layer(rows: int, columns: int) -> Layer:
    """Quark: int8 with a scale for each row."""
    rng = np.random.default_rng(rows)
    values, scale = rng.integers(-128, 128, (rows, columns)), rng.uniform(0.001, 0.002, rows).astype(np.float32)
    return {"weight": ("I8", values.astype(np.int8)), "weight_scale": ("F32", scale)}, values * scale[:, None]


INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, "actorder": None}


def described(format_: str, weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Settings of compressed-tensors."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    base = {"quant_method": "compressed-tensors", "format": format_, "quantization_status": "compressed"}
    return base | {"config_groups": {"group_0": group}, "ignore": ["lm_head"]} | more


def hqq_settings(axis: int) -> dict[str, Any]:
    """Settings of HQQ."""
    params = {"nbits": 4, "group_size": 32, "axis": axis}
    return {"quant_method": "hqq", "quant_config": {"weight_quant_params": params}, "skip_modules": ["lm_head"]}


GPTQ = {"bits": 4, "group_size": 32, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
BNB = {"quant_method": "bitsandbytes", "llm_int8_skip_modules": ["lm_head"]}
# A new method has its example here: it is then served, inspected and fuzzed.
EXAMPLES: dict[str, tuple[dict[str, Any], Make]] = {
    "compressed-tensors": (described("pack-quantized", INT4), int4_layer),
    "fp8": ({"quant_method": "fp8", "activation_scheme": "static"}, float8_layer),
    "fbgemm_fp8": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, float8_layer),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, nvfp4_layer),
    "mxfp4": ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, mxfp4_layer),
    "gptq": (GPTQ | {"quant_method": "gptq"}, packed_layers.gptq),
    "gptq act-order": (
        GPTQ | {"quant_method": "gptq", "bits": 3, "sym": False, "desc_act": True},
        partial(packed_layers.gptq, bits=3, symmetric=False, act_order=True),
    ),
    "auto-round": (GPTQ | {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}, packed_layers.gptq),
    "awq": (AWQ | {"version": "gemm"}, packed_layers.awq),
    "awq gemv": (AWQ | {"version": "gemv"}, partial(packed_layers.awq, version="gemv")),
    "bitsandbytes": (BNB | {"load_in_4bit": True}, partial(packed_layers.bnb_four_bits, nested=True)),
    "bitsandbytes int8": (BNB | {"load_in_8bit": True}, packed_layers.bnb_eight_bits),
    "hqq": (hqq_settings(1), partial(packed_layers.hqq, group=32)),
    "hqq axis 0": (hqq_settings(0), partial(packed_layers.hqq, group=32, axis=0)),
    "quark": ({"quant_method": "quark", "exclude": ["lm_head"]}, int8_layer),
}
