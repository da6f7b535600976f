"""Latent attention before the attention itself: rotated queries, and the pool's vectors of a step's tokens."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous

_HEADS_AT_ONCE = 8


@triton.jit
def _rotated(at, angles, mask, ROPE: tl.constexpr, E: tl.constexpr):
    """Load rows [rows, E] of rotated elements at `at`, and rotate pairs (i, i + ROPE/2) if there are angles."""
    HALF: tl.constexpr = ROPE // 2
    dims = tl.arange(0, E)
    x = tl.load(at + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    if angles is not None:
        partner = tl.where(dims < HALF, dims + HALF, dims - HALF)
        other = tl.load(at + partner[None, :], mask=mask, other=0.0).to(tl.float32)
        nth = tl.where(dims < HALF, dims, dims - HALF)
        cos = tl.load(angles + nth, mask=dims < ROPE, other=1.0)
        sin = tl.load(angles + HALF + nth, mask=dims < ROPE, other=0.0)
        sin = tl.where(dims < HALF, -sin, sin)
        x = x * cos[None, :] + other * sin[None, :]
    return x


@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def _latent_store(
    q, down, positions, slots, table, norm, q_out, pool, eps, q_stride, down_stride,
    HEADS: tl.constexpr, NOPE: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr, BLOCK_H: tl.constexpr,
    R: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    angles = None
    if table is not None:
        angles = table + tl.load(positions + token).to(tl.int64) * ROPE
    dims = tl.arange(0, E)
    inside = (dims < ROPE)[None, :]
    if tl.program_id(1) > 0:
        head = (tl.program_id(1) - 1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
        mask = (head < HEADS) & inside
        turned = _rotated(q + token * q_stride + head * (NOPE + ROPE) + NOPE, angles, mask, ROPE, E)
        at = (token * HEADS + head) * ROPE + dims[None, :]
        tl.store(q_out + at, turned.to(q_out.dtype.element_ty), mask=mask)
        return
    row, cached = down + token * down_stride, pool + slot * (RANK + ROPE)
    columns = tl.arange(0, R)
    x = tl.load(row + columns, mask=columns < RANK, other=0.0).to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x) / RANK + eps)
    x = x * tl.load(norm + columns, mask=columns < RANK, other=0.0).to(tl.float32)
    tl.store(cached + columns, x.to(pool.dtype.element_ty), mask=columns < RANK)
    one = tl.zeros([1, 1], tl.int64)
    shared = _rotated(row + RANK + one, angles, inside, ROPE, E)
    tl.store(cached + RANK + one + dims[None, :], shared.to(pool.dtype.element_ty), mask=inside)


def latent_store(
    q: Torch,
    down: Torch,
    positions: Torch,
    slots: Torch,
    table: Torch | None,
    norm: Torch,
    eps: float,
    q_out: Torch,
    pool: Torch,
) -> None:
    """Rotate the ends of queries; normalize latents, rotate shared keys, and store both in the pool.

    q [T, heads * (nope + rope)] and down [T, rank + rope], rows at any stride; positions [T], slots [T] integers: slot
    = block * block_size + offset, or -1 for a padding row, which is skipped. table [positions, rope] float32, cosines
    then sines, or None: no rotation. norm [rank]. q_out [T, heads, rope] gets the rotated ends of queries; pool
    [num_blocks, block_size, rank + rope] is a layer of `KvPool`. Float types are float32, bfloat16 or float16; sums are
    float32.

    Source: DeepSeek-V2 (2024), section 2.1.
    """
    tokens, heads, rope = q_out.shape
    rank = len(norm)
    _latent_store[tokens, 1 + triton.cdiv(heads, _HEADS_AT_ONCE)](
        q, down, positions, slots, table, norm, q_out, pool, eps, q.stride(0), down.stride(0),
        HEADS=heads, NOPE=q.shape[1] // heads - rope, RANK=rank, ROPE=rope, BLOCK_H=_HEADS_AT_ONCE,
        R=triton.next_power_of_2(rank), E=triton.next_power_of_2(rope), num_warps=4, **launch_options(),
    )  # fmt: skip
