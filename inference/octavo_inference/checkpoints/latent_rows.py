"""Latent attention from the matrices that checkpoints hold: the canonical order of their rows."""

from __future__ import annotations

import numpy as np

from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.layers import LatentAttention
from octavo_inference.models.rows import Order, half_split_rows, reordered
from octavo_inference.models.weights import Matrix, Tensor, bf16_bits, dequantize


def query_rows(heads: int, latent: LatentAttention) -> Order:
    """The order of the rows of queries in which the rotated rows, a head's last, are half-split instead of adjacent."""
    within = np.arange(latent.key_dim)
    within[latent.nope_dim :] = latent.nope_dim + half_split_rows(1, latent.rope_dim)
    return _by_head(heads, latent.key_dim, within)


def compressed_rows(latent: LatentAttention) -> Order:
    """The same for the rows of the latent and the shared key."""
    return np.concatenate([np.arange(latent.kv_rank), latent.kv_rank + half_split_rows(1, latent.rope_dim)])


def expansions(matrix: Matrix, heads: int, latent: LatentAttention, *, contents: bool) -> tuple[Matrix, Matrix]:
    """k_up and v_up of a projection from latents to [keys, values] of each head.

    Without `contents` they have their formats and sizes.
    """
    both = latent.nope_dim + latent.value_dim
    parts = np.arange(latent.nope_dim), np.arange(latent.nope_dim, both)
    orders = [_by_head(heads, both, part) for part in parts]
    if not contents and not isinstance(matrix, GroupedMatrix):
        return matrix.rows(0, len(orders[0])), matrix.rows(0, len(orders[1]))
    return reordered(matrix, orders[0]), reordered(matrix, orders[1])


def transposed(matrix: Matrix, heads: int, *, contents: bool) -> Tensor:
    """The expansion of keys that is stored as [heads * kv_rank, nope]: [heads * nope, kv_rank], in floats."""
    rows, columns = matrix.shape
    shape = (heads * columns, rows // heads)
    wide = matrix.format == "f32"
    if not contents:
        return Tensor("f32" if wide else "bf16", shape, np.broadcast_to(np.zeros(1, "f4" if wide else "u2"), shape))
    values = np.ascontiguousarray(dequantize(matrix).reshape(heads, -1, columns).swapaxes(1, 2)).reshape(shape)
    return Tensor("f32", shape, values) if wide else Tensor("bf16", shape, bf16_bits(values))


def _by_head(heads: int, size: int, within: Order) -> Order:
    """Rows `within` of each of `heads` parts of `size` rows."""
    return (np.arange(heads)[:, None] * size + within).reshape(-1)
