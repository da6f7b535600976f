"""How a step's decodes share the GPU: parts of their keys of nearly equal length, whatever the lengths of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PART_FIELDS = 3
"""Integers of a part: its sequence, its number, and the number of parts of the sequence; 0 for no part at all."""

PROGRAMS = 3
"""Programs of attention that a multiprocessor runs at a time."""
_SLACK = 4
"""A part may be longer than a share by one part in so many: another part would cost more than it evens out."""
LEAST_KEYS = 256
"""Fewest keys of a share: the result of a part is written and read once more."""


def shares_for(*, kv_heads: int, processors: int, programs: int = PROGRAMS) -> int:
    """Number of equal shares of a step's keys that fill a GPU of `processors` multiprocessors, for each KV head."""
    return max(1, programs * processors // kv_heads)


def most_parts(sequences: int, *, shares: int, longest: int) -> int:
    """Upper bound of the parts of this many decodes of at most `longest` keys: the launch size of attention.

    It equals the number of sequences where no sequence is long enough to be split.
    """
    return min(sequences + shares, sequences * -(-longest // LEAST_KEYS))


def most_split(*, shares: int) -> int:
    """Upper bound of the parts of those sequences that have several; these come first in `decode_parts`."""
    return 2 * shares


def decode_parts(seq_len: NDArray[np.integer[Any]], *, shares: int, least_keys: int = LEAST_KEYS) -> NDArray[np.int32]:
    """Split the keys of sequences with one query token each: parts [P, 3], of `PART_FIELDS`.

    A share is the number of all keys divided by `shares`, but at least `least_keys`. A sequence has the fewest parts
    that are at most a quarter longer than a share. They differ by one key tile at most and follow each other. The
    longest sequences come first, so that short parts fill the end of a launch. A sequence without keys has no part.
    """
    share = max(-(-int(seq_len.sum()) // shares), least_keys)
    order = np.argsort(-seq_len, kind="stable")
    lengths = seq_len[order].astype(np.int64)
    counts = np.minimum(lengths, np.maximum(1, -(-(_SLACK * lengths - share) // (_SLACK * share))))
    numbers = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.column_stack([np.repeat(order, counts), numbers, np.repeat(counts, counts)]).astype(np.int32)
