"""Packs latent attention: projections as other linears, and the expansions of keys and values head by head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.packed_formats import expansion_format
from octavo_inference.backends.cpu.native.packing import Packer
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import LatentAttention
from octavo_inference.models.weights import LatentWeights, Matrix, Tensor, dequantize


def pack_latent(
    packer: Packer,
    config: ModelConfig,
    latent: LatentAttention,
    weights: LatentWeights,
    number: int,
    layer: abi.LayerArgs,
) -> None:
    """Set the fields of layer `number` that latent attention has, `qkv` among them, but not its output."""

    def linear(**matrices: Matrix | None) -> abi.PackedMatrix:
        given = {name: matrix for name, matrix in matrices.items() if matrix is not None}
        return packer.matrix(list(given.values()), names=[f"{name} of layer {number}" for name in given])

    def expansion(name: str, matrix: Matrix, shape: tuple[int, int]) -> abi.PackedMatrix:
        if matrix.format not in {"f32", "bf16", "f16"}:
            reason = f"{matrix.format} that expands latents head by head"
            packer.into.unkept.setdefault(reason, []).append(f"{name} of layer {number}")
        values = dequantize(matrix).reshape(config.heads, -1, latent.kv_rank)
        turned = values.swapaxes(1, 2) if name == "k_up" else values
        matrix.release()
        return replace(packer, weights=expansion_format(packer.weights)).matrix(
            (Tensor("f32", shape, np.ascontiguousarray(turned).reshape(shape)),)
        )

    if weights.q_up is None:
        layer.qkv = linear(q=weights.q, kv_down=weights.kv_down)
    else:
        layer.qkv = linear(q_down=weights.q_down, kv_down=weights.kv_down)
        layer.query_up = linear(q_up=weights.q_up)
    layer.key_up = expansion("k_up", weights.k_up, (config.heads * latent.kv_rank, latent.nope_dim))
    layer.value_up = expansion("v_up", weights.v_up, (config.heads * latent.value_dim, latent.kv_rank))
    layer.query_norm, layer.latent_norm = packer.vector(weights.q_norm), packer.vector(weights.kv_norm)
