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
    """A sequence whose draft is verified: its sample rows are `first` to `end`, and `accepted` tokens agreed."""

    sequence: Sequence
    first: int
    accepted: int
    end: int


def agreed(draft: Draft, samples: NDArray[np.int32]) -> int:
    """How many tokens of a draft agree with `samples` [1 + tokens]: the sample after these is the next token.

    A token that ends the sequence, or completes its grammar, is left to be that next one: nothing follows it. So is the
    last one with a mask. Guidance advances by the others.
    """
    sequence, count = draft.sequence, 0
    most = len(draft.tokens) if draft.ahead is None else draft.ahead.known
    guide = None if sequence.guide is None else sequence.guide.copy()
    for token, guess in zip(samples.tolist(), draft.tokens[:most].tolist(), strict=False):
        if token != guess or token in sequence.ends or token in sequence.stops:
            break
        if guide is not None and not _goes_on(guide, token):
            break
        count += 1
    if sequence.guide is not None:
        for token in samples[:count].tolist():
            sequence.guide.advance(token)
    return count


def _goes_on(guide: Guide, token: int) -> bool:
    """Advance by a token; False if it is the last one."""
    try:
        guide.advance(token)
    except RequestError:
        return False
    return not guide.is_complete
