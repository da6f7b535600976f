"""Packs latent attention: projections as other linears, and the expansions of keys and values head by head."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.packed_formats import expansion_format
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import LatentAttention
from octavo_inference.models.weights import LatentWeights, Matrix, Tensor, dequantize

if TYPE_CHECKING:
    from octavo_inference.backends.cpu.native.packing import Packer


def pack_latent(
    packer: Packer, config: ModelConfig, latent: LatentAttention, weights: LatentWeights, number: int
) -> dict[str, Any]:
    """The fields of `abi.Layer` that a layer with latent attention has instead of `qkv`, which is among them."""

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

    direct = weights.q_up is None
    return {
        "qkv": linear(q=weights.q if direct else None, q_down=weights.q_down, kv_down=weights.kv_down),
        "query_up": abi.PackedMatrix() if direct else linear(q_up=weights.q_up),
        "key_up": expansion("k_up", weights.k_up, (config.heads * latent.kv_rank, latent.nope_dim)),
        "value_up": expansion("v_up", weights.v_up, (config.heads * latent.value_dim, latent.kv_rank)),
        "query_norm": packer.vector(weights.q_norm),
        "latent_norm": packer.vector(weights.kv_norm),
    }
