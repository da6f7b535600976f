"""Where sequences leave snapshots of their states for later requests. Pure."""

from __future__ import annotations

# A snapshot costs a copy, a slot, and often a step: the chunk has to end there. It must save more.
_LEAST_BLOCKS = 2
# A prompt of several thousand tokens may continue differently after any of them: a failed or aborted prefill, a
# shorter version of the same document.
_PROMPT_BLOCKS = 64
# The next turn of a chat begins with this answer, whose end is not known in advance. A sequence reads and writes its
# state at every token, so a copy per four blocks adds a few percent to that. The next turn recomputes at most as much.
_ANSWER_BLOCKS = 4


def next_snapshot(at: int, total: int, last: int, shared: int, block_size: int) -> int:
    """The next position after `at` where a sequence of `total` known tokens leaves a snapshot: a block border.

    `last` is the position of its latest snapshot, 0 without. `shared`: so many of its first tokens are in the block
    pool. If the state of that border is not, another request has the same beginning, and others may follow: system
    prompts end there (Marconi, https://arxiv.org/abs/2411.19379, branch points).

    Chunks end there. The last border of a prompt is the last one from which the same prompt can continue: its last
    token is always computed.
    """
    least = last + _LEAST_BLOCKS * block_size
    end = (total - 1) // block_size * block_size
    regular = _multiple(max(at + 1, least), _PROMPT_BLOCKS * block_size)
    wanted = [border for border in (shared, regular, end) if at < border <= end and border >= least]
    return min(wanted, default=_multiple(max(at, end, least - 1) + 1, _ANSWER_BLOCKS * block_size))


def _multiple(least: int, step: int) -> int:
    """The smallest multiple of `step` that is at least `least`."""
    return -(-least // step) * step
