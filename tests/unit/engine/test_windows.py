"""Windows free their blocks, and answers are those of a model that keeps all of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.models.layer_groups import LayerGroup, PoolLayout
from octavo_protocol.kv_tables import blocks_held

from .echo import EchoBackend, Runner, alone, make_runner
from .late import LateBackend
from .loads import LIMITS, Load, loads
from .runs import RunningBackend

FULL, WINDOW, CHUNK = LayerGroup((0,)), LayerGroup((1,), window=6), LayerGroup((2,), chunk=8)
MIXED = PoolLayout((FULL, WINDOW, WINDOW), 1)
ALONE = PoolLayout((WINDOW,), 1)

GROUPS = st.builds(
    lambda full, others: PoolLayout((FULL,) * full + others, 1),
    st.integers(0, 1),
    st.lists(
        st.one_of(
            st.builds(lambda n: LayerGroup((1,), window=n), st.integers(1, 21)),
            st.builds(lambda n: LayerGroup((1,), chunk=n), st.integers(1, 21)),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
)


def room(layout: PoolLayout, limits: dict[str, Any], steps: int) -> int:
    """The fewest blocks with which any request of a load can be served."""
    return blocks_held(layout.kinds, 34, limits["budget"] * steps, 4)


@settings(max_examples=scaled(120), deadline=None)
@given(load=loads(9), layout=GROUPS, spare=st.integers(0, 30), limits=LIMITS)
def test_answers_are_those_without_windows_that_free(
    load: Load, layout: PoolLayout, spare: int, limits: dict[str, Any]
) -> None:
    load.run(make_runner(blocks=room(layout, limits, 1) + spare, layout=layout, **limits))


@settings(max_examples=scaled(80), deadline=None)
@given(load=loads(9), layout=GROUPS, spare=st.integers(0, 30), limits=LIMITS)
def test_and_with_a_step_in_flight(load: Load, layout: PoolLayout, spare: int, limits: dict[str, Any]) -> None:
    load.run(make_runner(LateBackend(room(layout, limits, 2) + spare, layout=layout), **limits))


@settings(max_examples=scaled(80), deadline=None)
@given(load=loads(12), layout=GROUPS, spare=st.integers(0, 30), limits=LIMITS)
def test_and_in_runs_of_steps(load: Load, layout: PoolLayout, spare: int, limits: dict[str, Any]) -> None:
    load.run(make_runner(RunningBackend(room(layout, limits, 1) + spare, layout=layout), **limits))


def pinned_at_most(run: Runner) -> int:
    """Run to the end; the most blocks of the pool that were held at a time."""
    most = 0
    while run.engine.has_work:
        run.step()
        most = max(most, run.engine.scheduler.pool.pinned)
    return most


@pytest.mark.parametrize(
    ("layout", "blocks"),
    # Tokens 0 to 47 in blocks of 4: 12 of a full group, and of a window of 6 tokens at most 3 at a time.
    [(PoolLayout((FULL,), 1), 12), (ALONE, 3), (MIXED, 12 + 2 * 3), (PoolLayout((FULL, CHUNK), 1), 12 + 2)],
)
def test_an_answer_holds_the_blocks_of_its_windows(layout: PoolLayout, blocks: int) -> None:
    run = make_runner(layout=layout, budget=4)
    run.submit("a", [1, 2, 3], max_tokens=45)
    assert pinned_at_most(run) == blocks
    assert run.tokens["a", 0] == alone([1, 2, 3], 45, 1, layout=layout)


def test_a_prompt_longer_than_the_pool_is_computed_window_by_window() -> None:
    run = make_runner(blocks=5, layout=ALONE, budget=8, max_model_len=64)
    prompt = [i % 7 for i in range(55)]
    run.submit("a", prompt, max_tokens=5)
    assert pinned_at_most(run) <= 5
    assert run.tokens["a", 0] == alone(prompt, 5, 1, layout=ALONE)
    assert run.engine.scheduler.preemptions == 0


def test_more_sequences_run_at_a_time_than_without_freeing() -> None:
    """Prompts of 40 tokens, 10 blocks each, in a pool of 30 blocks."""

    def most_running(layout: PoolLayout) -> int:
        run = make_runner(blocks=30, layout=layout, budget=8, caching=False)
        for i in range(8):
            run.submit(str(i), [i] * 40, max_tokens=20)
        most = 0
        while run.engine.has_work:
            run.step()
            most = max(most, len(run.engine.scheduler.running))
        return most

    assert most_running(PoolLayout((FULL,), 1)) < most_running(ALONE)


def cached_tokens(run: Runner, name: str, prompt: list[int]) -> int:
    """Tokens of a prompt that came from the cache."""
    run.submit(name, prompt, max_tokens=1)
    run.finish()
    return run.final[name, 0].cached_tokens


@pytest.mark.parametrize("layout", [MIXED, ALONE, PoolLayout((FULL, CHUNK), 1)])
@pytest.mark.parametrize("length", [3, 4, 5, 8, 9, 16, 17, 24, 33, 40])
def test_a_prefix_is_found_up_to_its_last_full_block(layout: PoolLayout, length: int) -> None:
    run = make_runner(layout=layout, budget=16)
    prompt = [i % 5 for i in range(length)]
    assert cached_tokens(run, "a", prompt) == 0
    assert cached_tokens(run, "b", [*prompt, 50, 51]) == length // 4 * 4
    assert cached_tokens(run, "c", [*prompt[: length - 2], 52, 53]) == (length - 2) // 4 * 4


def test_a_prefix_without_its_window_is_found_up_to_where_a_window_is_there() -> None:
    run = make_runner(layout=MIXED, budget=16)
    prompt = [i % 5 for i in range(40)]
    cached_tokens(run, "a", prompt)
    tables, pool = run.engine.scheduler.tables, run.engine.scheduler.pool
    run.submit("b", [*prompt, 9], max_tokens=1)
    [sequence] = run.engine.scheduler.queue
    # The second window's blocks of tokens 28 to 31 and 36 to 39.
    pool.forget([sequence.hashes[at] + b"\2" for at in (7, 9)])
    # A token at 28 needs those from 23 on. One at 32 needs 27 to 31, and one at 36 needs 31 to 35.
    assert tables.match(sequence.hashes, 0.0).columns == 7
    run.finish()
    assert run.final["b", 0].cached_tokens == 28
    assert run.tokens["b", 0] == alone([*prompt, 9], 1, 1, layout=MIXED)


def test_a_window_is_found_without_the_blocks_before_it() -> None:
    run = make_runner(layout=ALONE, budget=16)
    prompt = [i % 5 for i in range(40)]
    cached_tokens(run, "a", prompt)
    run.submit("b", [*prompt, 9], max_tokens=1)
    [sequence] = run.engine.scheduler.queue
    run.engine.scheduler.pool.forget(sequence.hashes[:8])
    run.finish()
    assert run.final["b", 0].cached_tokens == 40


def test_blocks_that_a_window_passed_go_before_those_of_others() -> None:
    """They are the least recently used, although blocks that continue them are registered."""
    run = make_runner(blocks=14, layout=ALONE, budget=16)
    first, second = [1] * 24, [2] * 24
    cached_tokens(run, "a", first)
    cached_tokens(run, "b", second)
    cached_tokens(run, "c", [3] * 12)  # takes what the window of `first` passed first
    assert cached_tokens(run, "d", [*second, 4]) == 24


@pytest.mark.parametrize("make", [EchoBackend, LateBackend])
def test_a_swapped_sequence_keeps_what_its_windows_need(make: type[EchoBackend]) -> None:
    run = make_runner(make(16, layout=MIXED), budget=8, host_blocks=40, max_running=3, caching=False)
    for i in range(3):
        run.submit(str(i), [i] * 3, max_tokens=20)
    run.finish()
    assert run.engine.scheduler.swaps > 0
    assert run.engine.scheduler.recomputed == 0
    for i in range(3):
        assert run.tokens[str(i), 0] == alone([i] * 3, 20, 1, layout=MIXED)


def test_the_gateway_is_told_of_the_blocks_of_the_first_group() -> None:
    run = make_runner(layout=MIXED)
    run.submit("a", [1] * 17, max_tokens=1)
    run.finish()
    known, forgotten = run.engine.cache_changes()
    assert (len(known), len(forgotten)) == (4 * 8, 0)


def test_a_block_of_the_load_report_holds_all_layers() -> None:
    run = make_runner(blocks=32, layout=MIXED, budget=32)
    run.submit("a", [1] * 30, max_tokens=3)
    run.step()
    report = run.engine.stats()
    assert report.blocks_total == 32 // 3
    assert report.blocks_pinned == 8
    run.finish()
    report = run.engine.stats()
    assert (report.blocks_pinned, report.blocks_cached) == (0, 8)


def test_prompts_that_block_each_other_give_way() -> None:
    """Shared blocks do not become free when a window has passed: more are needed than were promised."""
    run = make_runner(blocks=11, layout=PoolLayout((WINDOW, WINDOW), 1), budget=12, max_running=4)
    for i in range(6):
        run.submit(str(i), [*([1] * (4 * i + 2)), i], max_tokens=30, n=2)
    run.finish()
    for i in range(6):
        for index in range(2):
            expected = alone([*([1] * (4 * i + 2)), i], 30, 1, index, PoolLayout((WINDOW, WINDOW), 1))
            assert run.tokens[str(i), index] == expected


def test_suspect_blocks_that_a_window_passed_are_cleared() -> None:
    run = make_runner(layout=MIXED, budget=16)
    run.submit("a", [1] * 9, max_tokens=30)
    for _ in range(20):
        run.step()
    [sequence] = run.engine.scheduler.running
    assert min(sequence.freed[1:]) > 0
    backend = run.engine.backend
    assert isinstance(backend, EchoBackend)
    run.engine._refuse_numbers(sequence)
    assert not (backend.kv > 0).any()
    assert run.engine.scheduler.pool.cached == 0
