"""Static batching: run a batch until all of it has finished, then form the next. The baseline for continuous batching.

An engine with padding sorts a batch by prompt length, because it pads all prompts to the longest. A ragged batch has no
padding. Here a static batch wastes the rows of sequences that finish while others still run. So sequences are grouped
by the tokens they may still generate, in buckets of powers of two.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo_inference.core.sequence import Sequence

_SMALLEST, _LARGEST = 32, 2048


def next_batch(waiting: Iterable[Sequence], head: Sequence, size: int) -> list[Sequence]:
    """`head` and up to `size` - 1 others with a similar remaining length, nearest bucket first, then by arrival."""
    own = bucket(head)
    others = (s for s in waiting if s is not head)
    nearest = sorted(others, key=lambda s: (abs(bucket(s) - own), s.arrival))
    return [head, *nearest[: size - 1]]


def bucket(sequence: Sequence) -> int:
    """Binary logarithm of the tokens a sequence may still generate, rounded up, within 32 to 2,048."""
    most = min(max(sequence.limit - sequence.total, _SMALLEST), _LARGEST)
    return (most - 1).bit_length()
