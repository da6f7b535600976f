"""Fused RoPE and KV cache write: from the QKV projection to rotated queries and stored K and V, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous

_HEADS_AT_ONCE = 4
_LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}


@triton.jit
def round_even(x):
    """Round |x| < 2**22 to the nearest integer, ties to even: near 1.5 * 2**23 float32 has no bits for a fraction."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def encode_e4m3(x):
    """The bits of float8_e4m3fn for |x| <= 448, ties to even, as uint8.

    Written out because Triton's interpreter truncates where the GPU rounds, and GPUs before compute capability 8.9 have
    no such instruction. The largest code below NaN is 448, so nothing overflows.
    """
    size = tl.abs(x)
    bits = size.to(tl.uint32, bitcast=True)
    # The exponent's bias is 127 in float32 and 7 in float8_e4m3fn; 20 of 23 mantissa bits are dropped.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # Below 2**-6 codes are multiples of 2**-9, which is the unit in the last place of a float32 from 2**14 on.
    tiny = (size + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(size < 0.015625, tiny, normal)
    return (code | ((x.to(tl.uint32, bitcast=True) >> 24) & 0x80)).to(tl.uint8)


@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def _rope_store(
    qkv, positions, slots, table, q_norm, k_norm, q_out, kv, scales, eps, row_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, ROTARY: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    LARGEST: tl.constexpr, FP8: tl.constexpr, BLOCK_H: tl.constexpr, D: tl.constexpr,
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
    if q_norm is not None:
        rstd = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
        q_weight = tl.load(q_norm + dims, mask=inside, other=0.0).to(tl.float32)[None, :]
        k_weight = tl.load(k_norm + dims, mask=inside, other=0.0).to(tl.float32)[None, :]
        x = tl.where(turns[:, None], x * rstd * tl.where(is_q[:, None], q_weight, k_weight), x)
        if ROTARY:
            q_weight = tl.load(q_norm + partner, mask=inside, other=0.0).to(tl.float32)[None, :]
            k_weight = tl.load(k_norm + partner, mask=inside, other=0.0).to(tl.float32)[None, :]
            other = other * rstd * tl.where(is_q[:, None], q_weight, k_weight)
    if ROTARY:
        angles = table + tl.load(positions + token).to(tl.int64) * ROTARY
        turning = dims < ROTARY
        nth = tl.where(dims < HALF, dims, dims - HALF)
        cos = tl.load(angles + nth, mask=turning, other=1.0)
        sin = tl.load(angles + HALF + nth, mask=turning, other=0.0)
        sin = tl.where(dims < HALF, -sin, sin)
        x = tl.where(turns[:, None], x * cos[None, :] + other * sin[None, :], x)

    at_q = (token * HEADS + head)[:, None] * DIM + dims[None, :]
    tl.store(q_out + at_q, x.to(q_out.dtype.element_ty), mask=mask & is_q[:, None])
    kv_row = (slot // BLOCK_SIZE * (2 * KV_HEADS) + head - HEADS) * BLOCK_SIZE + slot % BLOCK_SIZE
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
    q_norm: Torch | None,
    k_norm: Torch | None,
    eps: float,
    q_out: Torch,
    kv: Torch,
    scales: Torch | None,
) -> None:
    """Normalize and rotate the heads of q and k, write q, store k and v in the pool (quantized where it has scales).

    qkv [T, (heads + 2 * kv_heads) * head_dim], rows at any stride; positions [T], slots [T] integers: slot = block *
    block_size + offset, or -1 for a padding row, which is skipped. table [positions, rotary] float32, cosines then
    sines, or None: no rotation; elements i and i + rotary/2 of a head are a pair. q_norm, k_norm [head_dim], both or
    neither: RMSNorm over each head before the rotation. q_out [T, heads, head_dim]; kv [num_blocks, 2, kv_heads,
    block_size, head_dim] and scales [num_blocks, 2, kv_heads, block_size]: a layer of `KvPool`. Float types are
    float32, bfloat16 or float16 throughout; sums are float32.

    Sources: RoFormer (Su et al. 2021); scales per token and head as in KIVI's values (Liu et al. 2024).
    """
    tokens, heads, dim = q_out.shape
    _, _, kv_heads, block_size, _ = kv.shape
    fp8 = kv.dtype == torch.float8_e4m3fn
    grid = (tokens, triton.cdiv(heads + 2 * kv_heads, _HEADS_AT_ONCE))
    _rope_store[grid](
        qkv, positions, slots, table, q_norm, k_norm, q_out, kv.view(torch.uint8) if fp8 else kv, scales,
        eps, qkv.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, ROTARY=0 if table is None else table.shape[1], BLOCK_SIZE=block_size,
        LARGEST=_LARGEST.get(kv.dtype, 0.0), FP8=fp8, BLOCK_H=_HEADS_AT_ONCE, D=triton.next_power_of_2(dim),
        num_warps=1, **launch_options(),
    )  # fmt: skip
