"""Which sequence yields when the pool is full: lowest level, then least lost work, then newest. One rule in each test.

Blocks have 4 tokens, and an admission leaves each running sequence one block to grow into. So two sequences of 4 tokens
in a pool of 3 both start, both need a block for their fifth token, and one block is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[..., Any]


def make(runner: Make, **settings: Any) -> Any:
    """A runner without a prefix cache, whose clock stands still."""
    return runner(**{"budget": 64, "caching": False, "pace": 0.0, **settings})


def submit(run: Any, name: str, tokens: int, priority: int = 0) -> None:
    first = 20 * len(run.engine.scheduler.queue)
    run.submit(name, list(range(first, first + tokens)), max_tokens=40, priority=priority)


def victim(run: Any) -> str:
    """The sequence that the first preemption takes."""
    scheduler = run.engine.scheduler
    for _ in range(40):
        run.step()
        if scheduler.preemptions:
            assert scheduler.preemptions == 1, "one block was missing"
            [preempted] = scheduler.queue
            return str(preempted.request.id)
    raise AssertionError("nothing was preempted")


def test_of_equals_the_newest_yields(runner: Make) -> None:
    run = make(runner, blocks=3)
    submit(run, "older", 4)
    submit(run, "newer", 4)
    assert victim(run) == "newer"


def test_less_lost_work_comes_before_newest(runner: Make) -> None:
    run = make(runner, blocks=4)
    submit(run, "one block", 4)
    submit(run, "two blocks, newer", 8)
    assert victim(run) == "one block"


def test_the_level_comes_before_lost_work_and_newest(runner: Make) -> None:
    run = make(runner, blocks=4)
    submit(run, "low, two blocks, older", 8)
    submit(run, "high, one block, newer", 4, priority=1)
    assert victim(run) == "low, two blocks, older"


def test_the_level_is_the_priority_and_what_was_gained_by_waiting(runner: Make) -> None:
    run = make(runner, blocks=3)
    submit(run, "waited", 4)
    run.clock.now += 10.0  # worth one level: both start at level 1
    submit(run, "fresh", 4, priority=1)
    assert victim(run) == "fresh", "equal levels and work, so the newest"


def test_a_preempted_sequence_keeps_what_it_gained_by_waiting(runner: Make) -> None:
    run = make(runner, blocks=3)
    submit(run, "older", 4)
    submit(run, "newer", 4)
    run.step()
    run.clock.now += 30.0  # three levels, which count from its arrival and not from its preemption
    assert victim(run) == "newer"
    submit(run, "high", 4, priority=2)
    assert run.engine.scheduler.queue.peek(run.clock.now).request.id == "newer"


@pytest.mark.parametrize(
    ("host_blocks", "expected"),
    [
        (0, "newer"),  # lost: 8 // 4 = 2 and 10 // 4 = 2 blocks: the newest yields
        (2, "older"),  # the host has room for the 2 blocks of 8 tokens, not for the 3 of 10: lost are 0 and 2
        (3, "newer"),  # the host has room for either: lost are 0 and 0
    ],
)
def test_lost_work_is_counted_in_full_blocks_that_the_host_cannot_keep(
    runner: Make, host_blocks: int, expected: str
) -> None:
    # "newer" takes the only spare block for its ninth token; two steps later "older" has 8 tokens and needs one.
    run = make(runner, blocks=5, host_blocks=host_blocks)
    submit(run, "older", 6)
    submit(run, "newer", 8)
    assert victim(run) == expected


def test_the_host_keeps_as_many_blocks_as_it_has(runner: Make) -> None:
    run = make(runner, blocks=4, host_blocks=2)
    submit(run, "one block", 4)
    submit(run, "two blocks, newer", 8)
    assert victim(run) == "two blocks, newer", "2 of 2 host blocks: nothing is lost by either"


def test_blocks_that_the_prefix_cache_keeps_are_not_lost(runner: Make) -> None:
    run = make(runner, blocks=6, caching=True)
    submit(run, "cached", 8)
    submit(run, "distrusted, newer", 4)
    run.step()
    run.engine.scheduler.evict_suspect(run.engine.scheduler.running[1])
    # At 12 and 8 tokens both need a block. The cache has the 3 blocks of the first and none of the second's 2.
    assert victim(run) == "cached"


def test_siblings_of_a_prompt_that_a_reset_interrupted_have_no_cached_blocks(runner: Make) -> None:
    run = make(runner, blocks=16, budget=8, caching=True)
    run.submit("r", list(range(12)), n=2, max_tokens=8)
    run.step()
    run.engine.reset_cache()
    run.step()
    assert [sequence.registered for sequence in run.engine.scheduler.running] == [0, 0]


@pytest.mark.parametrize("by", ["reset", "suspect"])
def test_blocks_that_the_prefix_cache_forgot_are_lost(runner: Make, by: str) -> None:
    run = make(runner, blocks=4, caching=True)
    submit(run, "one block", 4)
    submit(run, "two blocks, newer", 8)
    run.step()
    if by == "reset":
        run.engine.reset_cache()
    else:
        for sequence in run.engine.scheduler.running:
            run.engine.scheduler.evict_suspect(sequence)
    assert victim(run) == "one block", "1 block is lost, not 2"
