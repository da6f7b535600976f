"""Where sequences leave snapshots of their states for later requests. Pure."""

from __future__ import annotations

import sys
from dataclasses import dataclass

# A snapshot costs a copy, a slot, and often a step: the chunk has to end there. It must save more.
_LEAST_BLOCKS = 2
# A prompt of several thousand tokens may continue differently after any of them: a failed or aborted prefill, a
# shorter version of the same document.
_PROMPT_BLOCKS = 64
# The next turn of a chat begins with this answer, whose end is not known in advance. A sequence reads and writes its
# state at every token, so a copy per four blocks adds a few percent to that. The next turn recomputes at most as much.
_ANSWER_BLOCKS = 4


@dataclass(slots=True)
class SnapshotMarks:
    """Positions of a sequence: its `latest` snapshot, 0 without, and the `next` one to leave.

    `shared`: so many of its first tokens were in the block pool when it started. `answer` is the key of the latest
    snapshot if that is within its answer: the next one replaces it.
    """

    latest: int = 0
    next: int = sys.maxsize
    shared: int = 0
    answer: bytes | None = None


def next_snapshot(at: int, total: int, marks: SnapshotMarks, block_size: int) -> int:
    """The next position after `at` where a sequence of `total` known tokens leaves a snapshot: a block border.

    Where a sequence shares more tokens with another one than there is a snapshot for, others may follow: a system
    prompt ends there. So it leaves one (Marconi, https://arxiv.org/abs/2411.19379, branch points).

    Chunks end at these positions. The last border of a prompt is the last one from which the same prompt can continue:
    its last token is always computed.
    """
    least = marks.latest + _LEAST_BLOCKS * block_size
    end = (total - 1) // block_size * block_size
    regular = _multiple(max(at + 1, least), _PROMPT_BLOCKS * block_size)
    wanted = [border for border in (marks.shared, regular, end) if at < border <= end and border >= least]
    return min(wanted, default=_multiple(max(at, end, least - 1) + 1, _ANSWER_BLOCKS * block_size))


def _multiple(least: int, step: int) -> int:
    """The smallest multiple of `step` that is at least `least`."""
    return -(-least // step) * step
