"""Fused RoPE and KV cache write: from the QKV projection to rotated queries and stored K and V, in one launch."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.encode import encode_e4m3, round_even
from octavo_inference.backends.cuda.kernels.head_norm import head_normed, head_statistics
from octavo_inference.backends.cuda.kernels.norm import DeviceNorm

_HEADS_AT_ONCE = 4
_LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}


class HeadRules(NamedTuple):
    """What few models do to heads of q and k. `normed_last`: the norms come after the rotation.

    `clip`: limit of the values of q, k and v, after norms before the rotation. `temperature` (floor, factor): q *= 1 +
    factor * ln(1 + floor((position + 1) / floor)).
    """

    normed_last: bool = False
    clip: float | None = None
    temperature: tuple[float, float] | None = None


PLAIN = HeadRules()


@triton.jit
def _clipped(x, limit):
    """Values within the limit; NaN stays NaN."""
    return tl.where(x > limit, limit, tl.where(x < -limit, -limit, x))


@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def _rope_store(
    qkv, positions, slots, table, q_norm, q_bias, k_norm, k_bias, q_out, kv, scales, eps, clip, floor, factor,
    row_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, POOL_HEADS: tl.constexpr, DIM: tl.constexpr, ROTARY: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, NORM: tl.constexpr, BY_HEAD: tl.constexpr, CENTRED: tl.constexpr, LARGEST: tl.constexpr,
    FP8: tl.constexpr, BLOCK_H: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = ROTARY // 2
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)  # heads of q, then of k, then of v
    real = head < HEADS + 2 * KV_HEADS
    is_q = head < HEADS
    turns = head < HEADS + KV_HEADS
    dims = tl.arange(0, D)
    inside = dims < DIM
    mask = real[:, None] & inside[None, :]
    row = qkv + token * row_stride + head[:, None] * DIM
    x = tl.load(row + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    # The other element of the rotated pair. Elements that are not rotated are their own partner.
    partner = tl.where(dims < HALF, dims + HALF, tl.where(dims < ROTARY, dims - HALF, dims))
    if ROTARY:
        other = tl.load(row + partner[None, :], mask=mask, other=0.0).to(tl.float32)
    if NORM == "first":
        mean, rstd = head_statistics(x, inside, eps, DIM, CENTRED)
        normed = head_normed(
            x, mean, rstd, q_norm, q_bias, k_norm, k_bias, head, dims, inside, HEADS, KV_HEADS, DIM, BY_HEAD, CENTRED
        )
        x = tl.where(turns[:, None], normed, x)
        if ROTARY:  # partners of v stay unused
            other = head_normed(
                other, mean, rstd, q_norm, q_bias, k_norm, k_bias, head, partner, inside, HEADS, KV_HEADS, DIM,
                BY_HEAD, CENTRED,
            )  # fmt: skip
    if clip is not None:
        x = _clipped(x, clip)
        if ROTARY:
            other = _clipped(other, clip)
    if ROTARY:
        angles = table + tl.load(positions + token).to(tl.int64) * ROTARY
        turning = dims < ROTARY
        nth = tl.where(dims < HALF, dims, dims - HALF)
        cos = tl.load(angles + nth, mask=turning, other=1.0)
        sin = tl.load(angles + HALF + nth, mask=turning, other=0.0)
        sin = tl.where(dims < HALF, -sin, sin)
        x = tl.where(turns[:, None], x * cos[None, :] + other * sin[None, :], x)
    if NORM == "last":
        mean, rstd = head_statistics(x, inside, eps, DIM, CENTRED)
        normed = head_normed(
            x, mean, rstd, q_norm, q_bias, k_norm, k_bias, head, dims, inside, HEADS, KV_HEADS, DIM, BY_HEAD, CENTRED
        )
        x = tl.where(turns[:, None], normed, x)
    if floor is not None:
        floors = tl.floor((tl.load(positions + token) + 1).to(tl.float32) / floor)
        x = tl.where(is_q[:, None], x * (1.0 + factor * tl.log(1.0 + floors)), x)

    at_q = (token * HEADS + head)[:, None] * DIM + dims[None, :]
    tl.store(q_out + at_q, x.to(q_out.dtype.element_ty), mask=mask & is_q[:, None])
    stored = head - HEADS + tl.where(turns, 0, POOL_HEADS - KV_HEADS)  # K, then V, of as many heads as the pool has
    kv_row = (slot // BLOCK_SIZE * (2 * POOL_HEADS) + stored) * BLOCK_SIZE + slot % BLOCK_SIZE
    is_kv = real & (head >= HEADS)
    at_kv = kv + kv_row[:, None] * DIM + dims[None, :]
    kv_mask = mask & is_kv[:, None]
    if scales is None:
        tl.store(at_kv, x.to(kv.dtype.element_ty), mask=kv_mask)
    else:
        largest = tl.maximum(tl.max(tl.abs(x), 1), 1e-20)  # a head of zeros is stored as zeros
        # NaN and infinity make the scale NaN, because 8-bit integers cannot hold them.
        poison = tl.sum(x * 0.0, 1)
        tl.store(scales + kv_row, largest / LARGEST + poison, mask=is_kv)
        x = x * (LARGEST / largest)[:, None]
        x = tl.minimum(tl.maximum(x, -LARGEST), LARGEST)
        tl.store(at_kv, encode_e4m3(x) if FP8 else round_even(x).to(tl.int8), mask=kv_mask)


def rope_store(
    qkv: Torch,
    positions: Torch,
    slots: Torch,
    table: Torch | None,
    q_norm: DeviceNorm | None,
    k_norm: DeviceNorm | None,
    eps: float,
    q_out: Torch,
    kv: Torch,
    scales: Torch | None,
    rules: HeadRules = PLAIN,
    kv_heads: int | None = None,
) -> None:
    """Normalize and rotate the heads of q and k, write q, store k and v in the pool (quantized where it has scales).

    qkv [T, (heads + 2 * kv_heads) * head_dim], rows at any stride; positions [T], slots [T] integers: slot = block *
    block_size + offset, or -1 for a padding row, which is skipped. table [positions, rotary] float32, cosines then
    sines, or None: no rotation; elements i and i + rotary/2 of a head are a pair. q_norm, k_norm, both or neither and
    of one kind: norms over each head, [head_dim], or with weights for each head, [heads * head_dim]. q_out [T, heads,
    head_dim]; kv [num_blocks, 2, kv_heads, block_size, head_dim] and scales [num_blocks, 2, kv_heads, block_size]: a
    layer of `KvPool`. `kv_heads`: those of a layer that has fewer than the pool. Float types are float32, bfloat16 or
    float16 throughout; sums are float32.

    Sources: RoFormer (Su et al. 2021); scales per token and head as in KIVI's values (Liu et al. 2024).
    """
    tokens, heads, dim = q_out.shape
    _, _, pool_heads, block_size, _ = kv.shape
    kv_heads = kv_heads or pool_heads
    fp8 = kv.dtype == torch.float8_e4m3fn
    grid = (tokens, triton.cdiv(heads + 2 * kv_heads, _HEADS_AT_ONCE))
    q, k = q_norm or DeviceNorm(None), k_norm or DeviceNorm(None)
    floor, factor = rules.temperature or (None, None)
    _rope_store[grid](
        qkv, positions, slots, table, q.weight, q.bias, k.weight, k.bias, q_out, kv.view(torch.uint8) if fp8 else kv,
        scales, eps, rules.clip, floor, factor, qkv.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, POOL_HEADS=pool_heads, DIM=dim,
        ROTARY=0 if table is None else table.shape[1], BLOCK_SIZE=block_size,
        NORM="none" if q_norm is None else "last" if rules.normed_last else "first",
        BY_HEAD=q.weight is not None and q.weight.numel() != dim, CENTRED=q.centred,
        LARGEST=_LARGEST.get(kv.dtype, 0.0), FP8=fp8, BLOCK_H=_HEADS_AT_ONCE, D=triton.next_power_of_2(dim),
        num_warps=1, **launch_options(),
    )  # fmt: skip
