"""Latent attention from the matrices that checkpoints hold, into the canonical order of rows."""

from __future__ import annotations

import numpy as np

from octavo_inference.models.config import ModelConfig
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.layers import LatentAttention
from octavo_inference.models.row_order import Rows, by_head, half_split, select_rows
from octavo_inference.models.weights import Matrix, Tensor, bf16_bits, dequantize


def queries(
    matrix: Matrix, config: ModelConfig, latent: LatentAttention, *, interleaved: bool, contents: bool
) -> Matrix:
    """A projection to queries, whose heads end with rotated rows: these become half-split."""
    if not interleaved:
        return matrix
    turned = latent.nope_dim + half_split(latent.rope_dim)
    rows = by_head(config.heads, latent.key_dim, np.concatenate([np.arange(latent.nope_dim), turned]))
    return _selected(matrix, rows, contents=contents)


def compressed(matrix: Matrix, latent: LatentAttention, *, interleaved: bool, contents: bool) -> Matrix:
    """The projection to the latent and the shared key: the rows of the key become half-split."""
    if not interleaved:
        return matrix
    rows = np.concatenate([np.arange(latent.kv_rank), latent.kv_rank + half_split(latent.rope_dim)])
    return _selected(matrix, rows, contents=contents)


def expansions(
    matrix: Matrix, config: ModelConfig, latent: LatentAttention, *, contents: bool
) -> tuple[Matrix, Matrix]:
    """k_up and v_up of a projection from latents to [keys, values] of each head."""
    both = latent.nope_dim + latent.value_dim
    parts = np.arange(latent.nope_dim), np.arange(latent.nope_dim, both)
    k_up, v_up = (_selected(matrix, by_head(config.heads, both, part), contents=contents) for part in parts)
    return k_up, v_up


def transposed(matrix: Matrix, heads: int, *, contents: bool) -> Tensor:
    """The expansion of keys that is stored as [heads * kv_rank, nope]: [heads * nope, kv_rank], in floats."""
    rows, columns = matrix.shape
    shape = (heads * columns, rows // heads)
    if not contents:
        size = np.zeros(1, np.float32 if matrix.format == "f32" else np.uint16)
        return Tensor("f32" if matrix.format == "f32" else "bf16", shape, np.broadcast_to(size, shape))
    values = dequantize(matrix).reshape(heads, -1, columns).swapaxes(1, 2).reshape(shape)
    if matrix.format == "f32":
        return Tensor("f32", shape, values)
    return Tensor("bf16", shape, bf16_bits(np.ascontiguousarray(values)))


def _selected(matrix: Matrix, rows: Rows, *, contents: bool) -> Matrix:
    """Some rows of a matrix. Sorted rows are a copy, which nothing can be read from without contents."""
    if contents or isinstance(matrix, GroupedMatrix):
        return select_rows(matrix, rows)
    return matrix.rows(0, len(rows))
