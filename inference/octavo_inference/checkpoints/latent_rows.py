"""Latent attention from the matrices that checkpoints hold: the canonical order of their rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo_inference.models.config import ModelConfig
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.layers import LatentAttention
from octavo_inference.models.rows import Order, half_split_rows, reordered
from octavo_inference.models.weights import LatentWeights, Matrix, Tensor, bf16_bits, dequantize


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


def compressions(
    config: ModelConfig,
    latent: LatentAttention,
    matrix: Callable[[str, int, int, Order | None], Matrix],
    norm: Callable[[str, int], Tensor],
    expanded: tuple[Matrix, Matrix],
    *,
    adjacent: bool,
) -> LatentWeights:
    """A layer's latent attention, without the output projection, of k_up and v_up and what the file has beside them.

    `matrix(name, rows, columns, order)` and `norm(name, size)` read the field `name` of `LatentWeights`. `adjacent`:
    rotary pairs are neighbours.
    """
    hidden, heads, rank = config.hidden, config.heads, latent.query_rank
    q_order, down_order = (query_rows(heads, latent), compressed_rows(latent)) if adjacent else (None, None)
    width = heads * latent.key_dim
    k_up, v_up = expanded
    return LatentWeights(
        kv_down=matrix("kv_down", latent.cached_dim, hidden, down_order),
        kv_norm=norm("kv_norm", latent.kv_rank),
        k_up=k_up,
        v_up=v_up,
        q=matrix("q", width, hidden, q_order) if rank is None else None,
        q_down=None if rank is None else matrix("q_down", rank, hidden, None),
        q_norm=None if rank is None else norm("q_norm", rank),
        q_up=None if rank is None else matrix("q_up", width, rank, q_order),
    )


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
