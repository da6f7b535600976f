"""Grammar bitmasks: tokens that the grammar does not allow get logit -inf."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

_TILE = 1024


@triton.jit
def _apply_bitmask(logits, mask, logits_stride, mask_stride, vocab, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * TILE + tl.arange(0, TILE)
    word = tl.load(mask + row * mask_stride + ids // 32, mask=ids < vocab, other=-1)
    forbidden = ((word >> (ids % 32)) & 1) == 0
    tl.store(logits + row * logits_stride + ids, float("-inf"), mask=forbidden & (ids < vocab))


def apply_bitmask(logits: Torch, mask: Torch) -> None:
    """Set the logits of ids whose bit is 0 to -inf.

    logits [R, vocab] float32, changed in place; mask [R, ceil(vocab / 32)] int32, id 0 is bit 0 of word 0 (the layout
    of llguidance and xgrammar).
    """
    rows, vocab = logits.shape
    if rows:
        _apply_bitmask[(rows, triton.cdiv(vocab, _TILE))](
            logits, mask, logits.stride(0), mask.stride(0), vocab, TILE=_TILE
        )
