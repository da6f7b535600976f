"""Gated delta net over prompts, first part: the inverse of each chunk's triangular system, all chunks side by side."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.launch_configs import dot_type
from octavo_inference.backends.cuda.kernels.paged_indexing import find_sequence
from octavo_inference.backends.cuda.kernels.state_math import FLOOR, decays_between, softplus, unit


@triton.jit
def inverse(lower, SIZE: tl.constexpr):
    """The inverse of I + lower, strictly lower triangular [SIZE, SIZE], from blocks of 1 to blocks of SIZE.

    Of a block [[a, 0], [c, b]] it is [[a', 0], [-b' c a', b']] with the inverses a', b' of its halves: products of
    whole matrices, masked. No intermediate result is larger than the inverse of a part of the system.
    """
    at = tl.arange(0, SIZE)
    row, column = at[:, None], at[None, :]
    found = tl.where(row == column, 1.0, 0.0)
    half = 1
    while half < SIZE:
        within = (row // (2 * half) == column // (2 * half)) & (row // half > column // half)
        right = tl.dot(tl.where(within, lower, 0.0), found, input_precision="tf32x3")
        found -= tl.dot(found, right, input_precision="tf32x3")
        half *= 2
    return found


@triton.jit(do_not_specialize=["num_seqs"], do_not_specialize_on_alignment=["query_start", "bounds"])
def _delta_solve(
    x, steps, rate, step_bias, query_start, bounds, out,
    num_seqs, floor, x_stride, steps_stride,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEY: tl.constexpr, BLOCK_T: tl.constexpr, K: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    wait_for_previous()
    head = tl.program_id(0)
    place = tl.program_id(1)
    base = tl.load(bounds)
    num_seqs = tl.load(bounds + 1) - base
    if num_seqs == 0:
        return
    origin = tl.load(query_start + base)
    nth_seq = find_sequence(query_start + base, origin, num_seqs, place, BLOCK_T)
    start = tl.load(query_start + base + nth_seq)
    first = (place - (start - origin) // BLOCK_T - nth_seq) * BLOCK_T
    tokens = tl.load(query_start + base + nth_seq + 1) - start
    if first >= tokens:
        return
    at = tl.arange(0, BLOCK_T)
    live = first + at < tokens
    token = (start + first + at).to(tl.int64)
    element = tl.arange(0, K)
    steps += token * steps_stride + head
    learned = tl.where(live, tl.sigmoid(tl.load(steps, mask=live, other=0.0).to(tl.float32)), 0.0)
    step = softplus(tl.load(steps + HEADS, mask=live, other=0.0).to(tl.float32) + tl.load(step_bias + head))
    total = tl.cumsum(tl.where(live, step * tl.load(rate + head), 0.0), 0)
    keys = x + token[:, None] * x_stride + (KEY_HEADS + head // (HEADS // KEY_HEADS)) * KEY + element[None, :]
    k = tl.load(keys, mask=live[:, None] & (element < KEY)[None, :], other=0.0).to(tl.float32)
    k = unit(k, floor).to(DOT)
    system = tl.dot(k, tl.trans(k), input_precision="ieee") * decays_between(total, BLOCK_T) * learned[:, None]
    solved = inverse(tl.where(at[:, None] > at[None, :], system, 0.0), BLOCK_T)
    rows = (token * HEADS + head)[:, None] * BLOCK_T + at[None, :]
    tl.store(out + rows, solved.to(out.dtype.element_ty), mask=live[:, None])


def delta_solve(
    x: Torch,
    steps: Torch,
    rate: Torch,
    step_bias: Torch,
    query_start: Torch,
    bounds: Torch,
    out: Torch,
    *,
    heads: int,
    key_dim: int,
    key_heads: int,
    warps: int = 4,
) -> None:
    """Write the rows of each chunk's inverse (I + A)^-1 for the sequences from bounds[0] up to bounds[1].

    A chunk is `chunk` tokens of a sequence. A[i, j] = sigmoid(b_i) * k_i k_j * the decay from j to i, for j < i: what
    the update by token j changes in that by token i. Tensors are those of `delta_chunks.delta_chunks`; out [T, heads,
    chunk] of any float type. The inverse is computed in float32.

    Source: the UT transform, Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule", section 3.2.
    """
    tokens, _, chunk = out.shape
    sequences = len(query_start) - 1
    _delta_solve[(heads, tokens // chunk + sequences)](
        x, steps, rate, step_bias, query_start, bounds, out,
        sequences, FLOOR, x.stride(0), steps.stride(0),
        HEADS=heads, KEY_HEADS=key_heads, KEY=key_dim, BLOCK_T=chunk, K=max(16, triton.next_power_of_2(key_dim)),
        DOT=dot_type(x.dtype), num_warps=warps, **launch_options(),
    )  # fmt: skip
