"""The adapter and expert of each choice of a step, by which `expert_sort` sorts choices."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.adapter_entries import ENTRY
from octavo_inference.backends.cuda.kernels.dependent_launch import launch_options, wait_for_previous

_TILE = 256


# fmt: off
@triton.jit(do_not_specialize=["choices"])
def _choices(ids, slots, entries, keys, choices, chosen, entries_stride, EXPERTS: tl.constexpr, ENTRY: tl.constexpr,
             TILE: tl.constexpr):
    wait_for_previous()
    choice = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = choice < choices
    expert = tl.load(ids + choice, mask=inside, other=-1)
    slot = tl.load(slots + choice // chosen, mask=inside, other=-1)
    known = (expert >= 0) & (slot >= 0)
    entry = entries + slot.to(tl.int64) * entries_stride + expert * ENTRY
    changed = tl.zeros((TILE,), tl.int32)
    for matrix in tl.static_range(2):
        for field in tl.static_range(1, 4, 2):  # its ranks, and whether it has biases
            changed |= tl.load(entry + matrix * EXPERTS * ENTRY + field, mask=known, other=0)
    tl.store(keys + choice, tl.where(changed > 0, slot * EXPERTS + expert, -1), mask=inside)
# fmt: on


def changed_choices(ids: Torch, slots: Torch, entries: Torch, keys: Torch, *, experts: int) -> None:
    """Write slot * `experts` + expert of each choice; -1 for those whose adapter does not change their expert.

    ids [T, chosen] int32 are the experts of tokens, slots [T] int32 the slots of their adapters, -1 for none. entries
    [slots, integers] are those of the first matrices of the experts, with their second matrices behind them. keys
    [T * chosen] int32.
    """
    choices = ids.numel()
    if choices:
        _choices[(triton.cdiv(choices, _TILE),)](
            ids, slots, entries, keys, choices, ids.shape[1], entries.stride(0), EXPERTS=experts, ENTRY=ENTRY,
            TILE=_TILE, **launch_options(),
        )  # fmt: skip
