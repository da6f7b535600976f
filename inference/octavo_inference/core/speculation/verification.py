"""Compares the tokens of a draft with the samples of the step that computed it. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_inference.core.sequence import Sequence
from octavo_inference.core.speculation.speculator import Draft


class VerifiedDraft(NamedTuple):
    """A sequence whose draft is verified: its sample rows begin at `first`, and `accepted` tokens agreed."""

    sequence: Sequence
    first: int
    accepted: int


def agreed(draft: Draft, samples: NDArray[np.int32]) -> int:
    """How many tokens of a draft agree with `samples` [1 + tokens]: the sample after these is the next token.

    A token that ends the sequence is left to be that next one: nothing follows it.
    """
    sequence, count = draft.sequence, 0
    for token, guess in zip(samples.tolist(), draft.tokens.tolist(), strict=False):
        if token != guess or token in sequence.ends or token in sequence.stops:
            break
        count += 1
    return count
