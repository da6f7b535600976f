"""Compares the tokens of a draft with the samples of the step that computed it. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_inference.common.errors import RequestError
from octavo_inference.core.guidance import Guide
from octavo_inference.core.sequence import Sequence
from octavo_inference.core.speculation.speculator import Draft


class VerifiedDraft(NamedTuple):
    """A sequence whose draft is verified: its sample rows begin at `first`, and `accepted` tokens agreed."""

    sequence: Sequence
    first: int
    accepted: int


def agreed(draft: Draft, samples: NDArray[np.int32]) -> int:
    """How many tokens of a draft agree with `samples` [1 + tokens]: the sample after these is the next token.

    A token that ends the sequence, or completes its grammar, is left to be that next one: nothing follows it. Guidance
    advances by the others.
    """
    sequence, count = draft.sequence, 0
    for token, guess in zip(samples.tolist(), draft.tokens.tolist(), strict=False):
        if token != guess or token in sequence.ends or token in sequence.stops:
            break
        if sequence.guide is not None and not _advances(sequence.guide, token):
            break
        count += 1
    return count


def _advances(guide: Guide, token: int) -> bool:
    """Advance by a token, unless it is the last one."""
    try:
        ahead = guide.copy()
        ahead.advance(token)
    except RequestError:
        return False
    if ahead.is_complete:
        return False
    guide.advance(token)
    return True
