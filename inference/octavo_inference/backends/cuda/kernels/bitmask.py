"""Bitmasks of allowed tokens: the others get logit -inf. For allowed ids, and for grammars."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor as Torch

_TILE = 1024


@triton.jit
def _apply_bitmask(logits, masks, rows, logits_stride, mask_stride, vocab, TILE: tl.constexpr):
    rows += 2 * tl.program_id(0)
    logits += tl.load(rows).to(tl.int64) * logits_stride
    masks += tl.load(rows + 1).to(tl.int64) * mask_stride
    ids = tl.program_id(1) * TILE + tl.arange(0, TILE)
    word = tl.load(masks + ids // 32, mask=ids < vocab, other=-1)
    forbidden = (ids < vocab) & (((word >> (ids % 32)) & 1) == 0)
    logit = tl.load(logits + ids, mask=forbidden, other=0.0)
    # NaN and +inf stay: they show that the model's output is not a distribution.
    tl.store(logits + ids, float("-inf"), mask=forbidden & (logit < float("inf")))


def apply_bitmask(logits: Torch, masks: Torch, rows: Torch) -> None:
    """Set the logits of ids whose bit is 0 to -inf, in some rows; NaN and +inf stay.

    logits [R, vocab] float32, changed in place. masks [N, >= ceil(vocab / 32)] int32: id 0 is bit 0 of word 0 (the
    layout of llguidance and xgrammar). rows [G, 2] int32: a row of logits, and the row of its mask.
    """
    vocab = logits.shape[1]
    if len(rows):
        _apply_bitmask[(len(rows), triton.cdiv(vocab, _TILE))](
            logits, masks, rows, logits.stride(0), masks.stride(0), vocab, TILE=_TILE
        )
