"""The router of a mixture of experts: logits in float32, then the experts of each token and their weights.

Few tokens make few programs, and a product with the router's matrix would wait for memory: its columns are divided into
parts, whose sums the choice adds up in order.

Sources: DeepSeek-V3 (https://arxiv.org/abs/2412.19437), section 2.1.2, for groups and the correction of scores.
"""

from __future__ import annotations

from typing import Literal

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous
from octavo_inference.backends.cuda.kernels.dequantized_dot import add_step
from octavo_inference.backends.cuda.kernels.launch_configs import dot_type

Scoring = Literal["softmax", "sigmoid", "softmax_of_chosen", "softmax_of_near"]

_FEW, _PARTS = 16, 8
_ROWS, _OUTPUTS, _STEP = 16, 32, 64


def router_parts(tokens: int) -> int:
    """Parts of the columns for so many tokens."""
    return _PARTS if tokens <= _FEW else 1


def parts_size(tokens: int, rows: int) -> int:
    """Most floats of `router_logits` for up to `tokens` tokens and a router of `rows` rows."""
    return max(tokens, min(tokens, _FEW) * _PARTS) * rows


@triton.jit(do_not_specialize=["m"])
def _logits(x, w, parts, m, n, k, x_stride, DOT: tl.constexpr, SPLIT: tl.constexpr, ROWS: tl.constexpr,
            OUTPUTS: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    out = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    part = tl.program_id(2)
    present, known = (row < m)[:, None], (out < n)[:, None]
    x += row[:, None] * x_stride
    w += out[:, None] * k
    steps = tl.cdiv(k, STEP)
    each = tl.cdiv(steps, SPLIT)
    acc = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for step in range(part * each, tl.minimum(part * each + each, steps)):
        acc = add_step(acc, x, w, None, None, None, step, present, known, k, k, 0, "dense", 0, 0, DOT, STEP)
    tl.store(parts + (part * m + row[:, None]) * n + out[None, :], acc, mask=present & (out < n)[None, :])


@triton.jit
def _mark_largest(values, index, COUNT: tl.constexpr):
    """True for the COUNT largest of `values`, the first of equal ones. No value of them is -inf."""
    found = index < 0
    for _ in tl.static_range(COUNT):
        best = tl.argmax(values, 0, tie_break_left=True)
        found |= index == best
        values = tl.where(index == best, float("-inf"), values)
    return found


@triton.jit
def _shares_of_near(left, index, near, COUNT: tl.constexpr):
    """The shares of the COUNT largest of `left`, each of those near it that were not chosen before; else 0."""
    shares = tl.zeros_like(left)
    for _ in tl.static_range(COUNT):
        best, top = tl.argmax(left, 0, tie_break_left=True), tl.max(left, 0)
        far = (top - left) / tl.maximum(tl.abs(left), top) > near
        shares = tl.where(index == best, 1.0 / tl.sum(tl.where(far, 0.0, tl.exp(left - top)), 0), shares)
        left = tl.where(index == best, float("-inf"), left)
    return shares


# fmt: off
@triton.jit(do_not_specialize=["tokens"])
def _choose(parts, bias, correction, slots, ids, weights, shared, load, tokens, columns, count, size, scale, near,
            SPLIT: tl.constexpr, SCORING: tl.constexpr, NORMALIZED: tl.constexpr, CHOSEN: tl.constexpr,
            GROUPS: tl.constexpr, CHOSEN_GROUPS: tl.constexpr, BEST_TWO: tl.constexpr, ALL_GROUPS: tl.constexpr,
            SIZE: tl.constexpr):
    wait_for_previous()
    token = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, ALL_GROUPS * SIZE)
    group, member = lane // SIZE, lane % SIZE
    expert = group * size + member
    known = (member < size) & (expert < count)
    logits = tl.zeros((ALL_GROUPS * SIZE,), tl.float32)
    for part in tl.static_range(SPLIT):
        logits += tl.load(parts + (part * tokens + token) * columns + expert, mask=known, other=0.0)
    if bias is not None:
        logits += tl.load(bias + expert, mask=known, other=0.0).to(tl.float32)
    scores = logits
    if SCORING == "sigmoid":
        scores = tl.sigmoid(logits)
    elif SCORING == "softmax":
        logits = tl.where(known, logits, float("-inf"))
        exponents = tl.exp(logits - tl.max(logits, 0))
        scores = exponents / tl.sum(exponents, 0)
    wanted = scores
    if correction is not None:
        wanted += tl.load(correction + expert, mask=known, other=0.0).to(tl.float32)
    # Not a number counts as little as possible, so that there are always as many experts as should be chosen.
    wanted = tl.where(wanted > -3.0e38, wanted, -3.0e38)
    wanted = tl.where(known, wanted, float("-inf"))
    if GROUPS > 1:
        by_group = wanted.reshape(ALL_GROUPS, SIZE)
        best = tl.max(by_group, 1)
        if BEST_TWO:
            first = tl.argmax(by_group, 1, tie_break_left=True)
            others = tl.where(tl.arange(0, SIZE)[None, :] == first[:, None], float("-inf"), by_group)
            best += tl.max(others, 1)
        groups = tl.arange(0, ALL_GROUPS)
        kept = _mark_largest(best, groups, CHOSEN_GROUPS)
        wanted = tl.where(kept[:, None], by_group, float("-inf")).reshape(ALL_GROUPS * SIZE)
    chosen = _mark_largest(wanted, lane, CHOSEN)
    if SCORING == "softmax_of_near":
        scores = _shares_of_near(wanted, lane, near, CHOSEN)
    elif SCORING == "softmax_of_chosen":
        logits = tl.where(chosen, logits, float("-inf"))
        scores = tl.exp(logits - tl.max(logits, 0))
    if SCORING == "softmax_of_chosen" or (NORMALIZED and SCORING != "softmax_of_near"):
        scores /= tl.sum(tl.where(chosen, scores, 0.0), 0) + 1e-20
    # In the order of their numbers.
    place = token * CHOSEN + tl.cumsum(chosen.to(tl.int32), 0) - 1
    real = tl.load(slots + token) >= 0
    tl.store(ids + place, tl.where(real, expert, -1), mask=chosen)
    tl.store(weights + place, scores * scale, mask=chosen)
    tl.atomic_add(load + expert, tl.where(real, chosen.to(tl.int64), 0), mask=chosen)
    if shared is not None:
        logit = 0.0
        for part in tl.static_range(SPLIT):
            logit += tl.load(parts + (part * tokens + token) * columns + count)
        tl.store(shared + token, tl.sigmoid(logit))
# fmt: on


def router_logits(x: Torch, router: Torch, parts: Torch) -> None:
    """Write the products of x with a router to `parts`, one for each of `router_parts`, in float32.

    x [T, hidden], router [rows, hidden] of any float type, rows of the latter contiguous, and parts of at least
    `parts_size` floats.
    """
    (m, k), n = x.shape, router.shape[0]
    if m == 0:
        return
    split = router_parts(m)
    short = x.dtype == router.dtype
    _logits[(triton.cdiv(m, _ROWS), triton.cdiv(n, _OUTPUTS), split)](
        x, router, parts, m, n, k, x.stride(0), DOT=dot_type(x.dtype) if short else tl.float32, SPLIT=split,
        ROWS=_ROWS, OUTPUTS=_OUTPUTS, STEP=_STEP, num_warps=4, num_stages=3, **launch_options(),
    )  # fmt: skip


def choose_experts(
    parts: Torch,
    rows: int,
    bias: Torch | None,
    correction: Torch | None,
    slots: Torch,
    ids: Torch,
    weights: Torch,
    shared: Torch | None,
    load: Torch,
    *,
    scoring: Scoring,
    normalized: bool,
    scale: float,
    groups: int,
    chosen_groups: int,
    best_two: bool,
    near: float = 0.0,
) -> None:
    """Choose the experts of each token from the sums of `router_logits`, as `models.layers.Experts` describes.

    parts of a router of `rows` rows; bias and correction [experts] float32; slots [T] int64, below 0 for padding. ids
    [T, chosen] int32 in ascending order, -1 for padding, with weights [T, chosen] float32. shared [T] float32 is the
    sigmoid of the router's last row. load [experts] int64 counts tokens.
    """
    (tokens, chosen), count = ids.shape, load.shape[0]
    if tokens == 0:
        return
    _choose[(tokens,)](
        parts, bias, correction, slots, ids, weights, shared, load, tokens, rows, count, count // groups, scale, near,
        SPLIT=router_parts(tokens), SCORING=scoring, NORMALIZED=normalized, CHOSEN=chosen, GROUPS=groups,
        CHOSEN_GROUPS=chosen_groups, BEST_TWO=best_two, ALL_GROUPS=triton.next_power_of_2(groups),
        SIZE=triton.next_power_of_2(count // groups), num_warps=1, **launch_options(),
    )  # fmt: skip
