"""Norms of queries and keys: over each head, within another kernel, and over all heads of a token together."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.norm import DeviceNorm, normalized, tile_of


@triton.jit
def head_statistics(x, inside, eps, DIM: tl.constexpr, CENTRED: tl.constexpr):
    """Means and 1 / deviations [heads, 1] of x [heads, D], which is zero past a head's end."""
    mean = tl.sum(x, 1)[:, None] / DIM
    if CENTRED:
        x = tl.where(inside[None, :], x - mean, 0.0)
    return mean, tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]


@triton.jit
def _of_heads(q, k, head, dims, inside, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
              BY_HEAD: tl.constexpr):  # fmt: skip
    """Elements `dims` of vectors for heads of q, then of k; of other heads they are arbitrary."""
    is_q = (head < HEADS)[:, None]
    if BY_HEAD:
        at = head[:, None] * DIM + dims[None, :]
        is_k = (head >= HEADS)[:, None] & (head < HEADS + KV_HEADS)[:, None]
        for_q = tl.load(q + at, mask=is_q & inside[None, :], other=0.0)
        for_k = tl.load(k + at - HEADS * DIM, mask=is_k & inside[None, :], other=0.0)
    else:
        for_q = tl.load(q + dims, mask=inside, other=0.0)[None, :]
        for_k = tl.load(k + dims, mask=inside, other=0.0)[None, :]
    return tl.where(is_q, for_q.to(tl.float32), for_k.to(tl.float32))


@triton.jit
def head_normed(x, mean, rstd, q_weight, q_bias, k_weight, k_bias, head, dims, inside, HEADS: tl.constexpr,
                KV_HEADS: tl.constexpr, DIM: tl.constexpr, BY_HEAD: tl.constexpr, CENTRED: tl.constexpr):  # fmt: skip
    """Elements `dims` of heads x [heads, D], normalized by `head_statistics`."""
    if CENTRED:
        x -= mean
    x *= rstd
    if q_weight is not None:
        x *= _of_heads(q_weight, k_weight, head, dims, inside, HEADS, KV_HEADS, DIM, BY_HEAD)
    if q_bias is not None:
        x += _of_heads(q_bias, k_bias, head, dims, inside, HEADS, KV_HEADS, DIM, BY_HEAD)
    return x


@triton.jit
def _normalize_row(at, weight, bias, width, eps, CENTRED: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(at + columns, mask=inside, other=0.0).to(tl.float32)
    x = normalized(x, weight, bias, columns, inside, width, eps, CENTRED)
    tl.store(at + columns, x.to(at.dtype.element_ty), mask=inside)


@triton.jit
def _normalize_whole(qkv, q_weight, q_bias, k_weight, k_bias, row_stride, q_width, k_width, eps, CENTRED: tl.constexpr,
                     Q_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr):  # fmt: skip
    wait_for_previous()
    row = qkv + tl.program_id(0).to(tl.int64) * row_stride
    if tl.program_id(1) == 0:
        _normalize_row(row, q_weight, q_bias, q_width, eps, CENTRED, Q_BLOCK)
    else:
        _normalize_row(row + q_width, k_weight, k_bias, k_width, eps, CENTRED, K_BLOCK)


def normalize_whole(
    qkv: Torch, q_norm: DeviceNorm, k_norm: DeviceNorm, eps: float, *, q_width: int, k_width: int
) -> None:
    """Normalize the queries of all heads together, and the keys, in place.

    qkv [T, at least q_width + k_width] of any float type, rows at any stride; the norms are of one kind, with weights
    [q_width] and [k_width].
    """
    if len(qkv):
        block, warps = tile_of(q_width)
        _normalize_whole[(len(qkv), 2)](
            qkv, q_norm.weight, q_norm.bias, k_norm.weight, k_norm.bias, qkv.stride(0), q_width, k_width, eps,
            CENTRED=q_norm.centred, Q_BLOCK=block, K_BLOCK=tile_of(k_width)[0], num_warps=warps, **launch_options(),
        )  # fmt: skip
