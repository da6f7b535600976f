"""Tries a grammar: compiles it, and computes the masks of a few tokens. Pure, apart from the clock passed in."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from octavo_inference.common.errors import RequestError
from octavo_inference.grammar.matcher import Vocabulary
from octavo_inference.server.grammars.explained import NO_TEXT, explained

STEPS = 48
"""Choices of a token. Tokens that follow in any case are taken between them, and what lies behind is tried, too."""
MAX_TOKENS = 4096
MASK_SECONDS = 0.5
"""Most CPU time for one token. Usual are 0.1 ms, and `matcher.LIMITS` aims at 15 ms."""


def trial(
    vocabulary: Vocabulary, size: int, closing: Collection[int], grammar: str, cpu_time: Callable[[], float]
) -> str | None:
    """Why a grammar cannot be used, or None. `cpu_time` is this thread's, in seconds.

    `closing` are ids of what ends texts, lists and objects. They are taken in turn with any others, to go far.
    """
    mask = np.zeros((size + 31) // 32, np.int32)
    tokens = 0
    try:
        matcher = vocabulary.compile(grammar)
        for step in range(STEPS):
            for token in matcher.forced():
                matcher.consume(token)
                tokens += 1
            if matcher.is_complete or tokens > MAX_TOKENS:
                return None
            begun = cpu_time()
            matcher.fill(mask)
            if cpu_time() - begun > MASK_SECONDS:
                return f"computing one token took longer than {MASK_SECONDS:g} s; simplify the grammar"
            chosen = _allowed(mask, closing, step)
            if chosen is None:
                return NO_TEXT if step == 0 else None
            matcher.consume(chosen)
    except RequestError as error:
        return explained(str(error))
    except MemoryError:
        return "compiling needs too much memory; simplify the grammar"
    return None


def _allowed(mask: NDArray[np.int32], closing: Collection[int], step: int) -> int | None:
    """One of the allowed ids: over the steps, from all parts of the vocabulary. None if there is none."""
    if step % 2:
        for token in closing:
            if mask[token // 32] >> (token % 32) & 1:
                return token
    ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    return int(ids[(step * 7919 + 101) % len(ids)]) if len(ids) else None
