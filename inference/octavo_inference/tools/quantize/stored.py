"""Tensors of a compressed-tensors checkpoint: names and bytes of one layer, and the file that holds them.

Format of the weights: https://github.com/neuralmagic/compressed-tensors. Codes of 4 or 8 bits lie in int32 words, the
first in the lowest bits: `weight_packed` [rows, columns * bits / 32]. `weight_scale` is [rows, groups], and
`weight_zero_point` packs the rows of [rows, groups]. FP8 codes are `weight` itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import bf16_bits
from octavo_inference.tools.quantize.decoder import Floats
from octavo_inference.tools.quantize.grid import Codes, Rounded
from octavo_inference.tools.quantize.half import Stored, store_exact, store_half
from octavo_inference.tools.quantize.layer import QuantizedLayer

PREFIX = "model."
_GEMMA = frozenset({"gemma2", "gemma3"})


@dataclass(frozen=True, slots=True)
class Module:
    """A linear module of transformers: the fields of `LayerWeights` that its rows are, and their stage."""

    name: str
    fields: tuple[str, ...]
    stage: str


def modules(config: ModelConfig) -> tuple[Module, ...]:
    """The linear modules of a layer, by their names in it."""
    if config.architecture == "phi3":
        return (
            Module("self_attn.qkv_proj", ("q", "k", "v"), "qkv"),
            Module("self_attn.o_proj", ("o",), "o"),
            Module("mlp.gate_up_proj", ("gate", "up"), "gate_up"),
            Module("mlp.down_proj", ("down",), "down"),
        )
    return (
        Module("self_attn.q_proj", ("q",), "qkv"),
        Module("self_attn.k_proj", ("k",), "qkv"),
        Module("self_attn.v_proj", ("v",), "qkv"),
        Module("self_attn.o_proj", ("o",), "o"),
        Module("mlp.gate_proj", ("gate",), "gate_up"),
        Module("mlp.up_proj", ("up",), "gate_up"),
        Module("mlp.down_proj", ("down",), "down"),
    )


def layer_tensors(config: ModelConfig, number: int, layer: QuantizedLayer) -> dict[str, Stored]:
    """All tensors of a layer by name."""
    prefix = f"{PREFIX}layers.{number}."
    result = {}
    for module in modules(config):
        name = prefix + module.name
        parts = [layer.rounded[field] for field in module.fields if field in layer.rounded]
        if parts:
            result.update({f"{name}.{key}": tensor for key, tensor in quantized(parts).items()})
        else:
            result[f"{name}.weight"] = store_half(np.concatenate([layer.values[field] for field in module.fields]))
        biases = [layer.values[f"{field}_bias"] for field in module.fields if f"{field}_bias" in layer.values]
        if biases:
            result[f"{name}.bias"] = store_exact(np.concatenate(biases))
    for field, name in norm_names(config).items():
        if field in layer.values:
            result[f"{prefix}{name}.weight"] = norm(config, layer.values[field])
    return result


def norm_names(config: ModelConfig) -> dict[str, str]:
    """Names of the norms of a layer by field."""
    before_mlp = "pre_feedforward_layernorm" if config.output_norms else "post_attention_layernorm"
    return {
        "input_norm": "input_layernorm",
        "post_norm": before_mlp,
        "attention_output_norm": "post_attention_layernorm",
        "mlp_output_norm": "post_feedforward_layernorm",
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
    }


def quantized(parts: list[Rounded]) -> dict[str, Stored]:
    """A module of matrices that stand above each other, all on the same grid."""
    grid = parts[0].grid
    codes = np.concatenate([part.codes for part in parts])
    scales = {"weight_scale": Stored("BF16", bf16_bits(np.concatenate([part.scales for part in parts])))}
    if grid.floating:
        return {"weight": Stored("F8_E4M3", codes), **scales}
    result = {
        "weight_packed": Stored("I32", pack(codes, grid.bits)),
        **scales,
        "weight_shape": Stored("I64", np.array(codes.shape, np.int64)),
    }
    if not grid.symmetric:
        zeros = np.concatenate([part.zeros for part in parts])
        result["weight_zero_point"] = Stored("I32", np.ascontiguousarray(pack(zeros.T, grid.bits).T))
    return result


def pack(codes: Codes, bits: int) -> NDArray[np.int32]:
    """Codes [rows, columns] in words along the rows, [rows, ceil(columns * bits / 32)]; missing columns are 0."""
    rows, columns = codes.shape
    each = 32 // bits
    whole = np.zeros((rows, -(-columns // each), each), np.uint32)
    whole.reshape(rows, -1)[:, :columns] = codes
    shifts = np.arange(each, dtype=np.uint32) * np.uint32(bits)
    words: NDArray[np.uint32] = np.bitwise_or.reduce(whole << shifts, axis=2)
    return words.view(np.int32)


def norm(config: ModelConfig, values: Floats) -> Stored:
    """Weights of a norm; Gemma stores the difference from 1."""
    return store_exact(values - np.float32(1) if config.architecture in _GEMMA else values)


def write_shard(path: Path, tensors: Mapping[str, Stored]) -> None:
    """Write a safetensors file. It is complete or absent: it gets its name when all of it is on the disk."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        end = at + tensor.data.nbytes
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.data.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    unfinished = path.with_name(path.name + ".part")
    with unfinished.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor.data).data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def tensor_names(path: Path) -> list[str]:
    """Names of the tensors in a file of `write_shard`."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return [name for name in header if name != "__metadata__"]
