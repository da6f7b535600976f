"""The engine: what is planned, shared, preempted and refused never changes an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_common.failpoints import Failpoints
from octavo_inference.common.errors import DeviceLostError, RequestError
from octavo_inference.core.request import Request, SamplingParams

Make = Callable[..., Any]


def answer(runner: Make, prompt: list[int], **sampling: Any) -> list[int]:
    """What a prompt gives alone, with room for everything and nothing shared."""
    alone = runner(caching=False, budget=64)
    alone.submit("alone", prompt, **sampling)
    return alone.finish()["alone", 0]


PROMPTS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=22), st.integers(1, 9), st.integers(1, 3)),
    min_size=1,
    max_size=9,
)


@settings(max_examples=scaled(50), deadline=None)
@given(
    requests=PROMPTS,
    blocks=st.integers(8, 24),
    max_running=st.integers(1, 5),
    budget=st.integers(5, 32),
    caching=st.booleans(),
    arrivals=st.lists(st.integers(0, 3), min_size=9, max_size=9),
    priorities=st.lists(st.integers(0, 1), min_size=9, max_size=9),
    aborted=st.sets(st.tuples(st.integers(0, 8), st.integers(0, 2)), max_size=4),
)
def test_answers_do_not_depend_on_pool_budget_sharing_or_company(
    runner: Make,
    requests: list[tuple[list[int], int, int]],
    blocks: int,
    max_running: int,
    budget: int,
    caching: bool,
    arrivals: list[int],
    priorities: list[int],
    aborted: set[tuple[int, int]],
) -> None:
    run = runner(blocks=blocks, max_model_len=32, max_running=max_running, budget=budget, caching=caching)
    for i, (prompt, count, n) in enumerate(requests):
        run.submit(str(i), prompt, max_tokens=count, n=n, seed=5, priority=priorities[i])
        for _ in range(arrivals[i]):
            run.step()
        for victim, index in aborted:
            if victim == i - 1:
                run.engine.abort(str(victim), index)
    tokens = run.finish()
    for i, (prompt, count, n) in enumerate(requests):
        wide = runner(caching=False, budget=64)
        wide.submit("x", prompt, max_tokens=count, n=n, seed=5)
        expected = wide.finish()
        for index in range(n):
            if (i, index) in aborted:
                got = tokens.get((str(i), index), [])
                assert got == expected["x", index][: len(got)]
            else:
                assert tokens[str(i), index] == expected["x", index]
    backend = run.engine.backend
    for batch in backend.batches:
        assert len(batch.tokens) <= budget
        assert len(batch.seq_len) <= max_running
        assert len(batch.sample.row) <= max_running
        assert batch.block_table.flags.c_contiguous
    report = run.engine.stats()
    assert (report.running, report.waiting, report.waiting_tokens, report.uncached_prompt_tokens) == (0, 0, 0, 0)
    assert report.blocks_pinned == 0
    assert report.generation_tokens == sum(map(len, tokens.values()))


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks_between_decodes(runner: Make) -> None:
    run = runner(budget=8)
    run.submit("short", [1], max_tokens=6)
    run.step()
    run.submit("long", list(range(20)), max_tokens=2)
    run.finish()
    shapes = [np.diff(batch.query_start).tolist() for batch in run.engine.backend.batches]
    assert shapes[:5] == [[1], [1, 7], [1, 7], [1, 6], [1, 1]]


def test_without_chunking_a_prompt_waits_until_it_fits_a_step(runner: Make) -> None:
    run = runner(budget=24, max_model_len=24, chunked=False)
    run.submit("a", [1, 2], n=2, max_tokens=3)
    run.step()
    run.submit("b", list(range(23)), max_tokens=1)
    run.finish()
    shapes = [np.diff(batch.query_start).tolist() for batch in run.engine.backend.batches]
    assert shapes == [[2], [1, 1], [1, 1], [23]]
    assert run.tokens["b", 0] == answer(runner, list(range(23)), max_tokens=1)


def test_a_shared_beginning_is_computed_once(runner: Make) -> None:
    run = runner()
    run.submit("a", [*range(13), 50], max_tokens=2)
    run.finish()
    run.submit("b", [*range(13), 51], max_tokens=2)
    run.finish()
    assert run.final["a", 0].cached_tokens == 0
    assert run.final["b", 0].cached_tokens == 12
    assert len(run.engine.backend.batches[2].tokens) == 2


def test_of_a_prompt_known_in_full_the_last_block_is_computed_again(runner: Make) -> None:
    run = runner()
    for name in ("a", "b"):
        run.submit(name, list(range(12)), max_tokens=3)
        run.finish()
    assert run.final["b", 0].cached_tokens == 8
    assert run.tokens["a", 0] == run.tokens["b", 0]


def test_generated_tokens_are_found_by_the_next_turn_of_a_chat(runner: Make) -> None:
    run = runner()
    run.submit("turn-1", list(range(6)), max_tokens=7)
    said = run.finish()["turn-1", 0]
    run.submit("turn-2", [*range(6), *said, 9, 9], max_tokens=1)
    run.finish()
    assert run.final["turn-2", 0].cached_tokens == 12


def test_salts_keep_prefix_caches_apart(runner: Make) -> None:
    run = runner()
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        run.engine.submit(Request(id=name, tokens=list(range(9)), sampling=SamplingParams(max_tokens=1), salt=salt))
        run.finish()
    assert [run.final[name, 0].cached_tokens for name in "abc"] == [0, 0, 8]


def test_without_prefix_caching_nothing_is_reused(runner: Make) -> None:
    run = runner(caching=False)
    for name in ("a", "b"):
        run.submit(name, list(range(12)), max_tokens=1)
        run.finish()
    assert run.final["b", 0].cached_tokens == 0
    assert run.engine.stats().blocks_cached == 0


def test_siblings_share_the_prompts_blocks_and_copy_only_the_partial_one(runner: Make) -> None:
    run = runner(caching=False)
    run.submit("r", list(range(10)), n=3, max_tokens=3)
    run.step()
    report = run.engine.stats()
    assert (report.running, report.blocks_pinned) == (3, 3)
    run.step()
    assert run.engine.backend.copies == 2
    tokens = run.finish()
    assert tokens["r", 0] == answer(runner, list(range(10)), max_tokens=3)
    assert len({tuple(tokens["r", i]) for i in range(3)}) == 3, "each sibling has random numbers of its own"


def test_siblings_without_a_row_run_later(runner: Make) -> None:
    run = runner(max_running=2)
    run.submit("r", list(range(9)), n=5, max_tokens=4)
    few = dict(run.finish())
    wide = runner(max_running=8)
    wide.submit("r", list(range(9)), n=5, max_tokens=4)
    assert few == wide.finish()


def test_aborting_the_first_sibling_lets_the_others_finish(runner: Make) -> None:
    run = runner(budget=8)
    run.submit("r", list(range(20)), n=2, max_tokens=3)
    run.step()
    run.engine.abort("r", 0)
    tokens = run.finish()
    assert list(tokens) == [("r", 1)]
    assert len(tokens["r", 1]) == 3


def test_an_abort_frees_everything_at_once(runner: Make) -> None:
    run = runner(max_running=2)
    for name in "abc":
        run.submit(name, list(range(9)), n=2)
    run.step()
    for name in "abc":
        run.engine.abort(name)
    run.engine.abort("never seen")
    assert not run.engine.has_work
    report = run.engine.stats()
    assert (report.running, report.waiting, report.blocks_pinned) == (0, 0, 0)


def test_a_full_pool_preempts_and_the_answers_stay(runner: Make) -> None:
    run = runner(blocks=8, max_model_len=32)
    prompts = [[i, i + 1, i + 2] for i in range(4)]
    for i, prompt in enumerate(prompts):
        run.submit(str(i), prompt, max_tokens=20)
    tokens = run.finish()
    assert run.engine.scheduler.preemptions > 0
    for i, prompt in enumerate(prompts):
        assert tokens[str(i), 0] == answer(runner, prompt, max_tokens=20)


def test_the_victim_is_the_least_important_then_the_one_with_least_to_lose(runner: Make) -> None:
    run = runner(blocks=6, max_model_len=24)
    run.submit("important", [1, 2, 3], max_tokens=18, priority=1)
    run.submit("older", [1, 2, 4, 5, 6, 7], max_tokens=12)
    run.finish()
    assert run.order == [("important", 0), ("older", 0)]
    assert run.engine.scheduler.preemptions > 0


def test_higher_priority_leaves_the_queue_first_and_equals_in_order(runner: Make) -> None:
    run = runner(max_running=1)
    for name, priority in (("a", 0), ("b", 0), ("c", 5), ("d", 0)):
        run.submit(name, [1], max_tokens=1, priority=priority)
    run.finish()
    assert [name for name, _ in run.order] == ["c", "a", "b", "d"]


def test_a_long_prompt_is_not_overtaken_for_ever(runner: Make) -> None:
    run = runner(blocks=8, max_model_len=32)
    run.submit("first", [1, 2, 3, 4], max_tokens=4)
    run.step()
    run.submit("big", list(range(28)), max_tokens=2)
    for i in range(30):
        run.submit(f"small-{i}", [i, i + 1], max_tokens=4)
    run.finish()
    assert run.order.index(("big", 0)) <= 1


def test_stops_at_end_of_sequence_stop_ids_and_lengths(runner: Make) -> None:
    first, second, third = answer(runner, [1, 2, 3], max_tokens=3)
    run = runner(max_model_len=16)
    run.submit("stop", [1, 2, 3], stop_token_ids=(second,))
    run.submit("banned", [1, 2, 3], stop_token_ids=(third,), min_tokens=2, max_tokens=5)
    run.submit("all", [1, 2, 3], max_tokens=None)
    run.finish()
    assert run.tokens["stop", 0] == [first, second]
    assert (run.final["stop", 0].finish_reason, run.final["stop", 0].stop_reason) == ("stop", second)
    assert (run.final["all", 0].finish_reason, len(run.tokens["all", 0])) == ("length", 13)


def test_ids_that_would_end_it_are_banned_before_min_tokens(runner: Make) -> None:
    run = runner()
    run.submit("r", [1, 2, 3], stop_token_ids=(7, 3), min_tokens=2, max_tokens=4)
    run.finish()
    banned = [
        None if batch.sample.adjust[0] is None else batch.sample.adjust[0].banned.tolist()
        for batch in run.engine.backend.batches
    ]
    assert banned[:2] == [[3, 7, 60], [3, 7, 60]]
    assert banned[2] is None


def test_penalties_see_prompt_and_output(runner: Make) -> None:
    run = runner()
    run.submit("r", [1, 2, 3], presence_penalty=0.5, max_tokens=3)
    run.step()
    run.step()
    adjust = run.engine.backend.batches[1].sample.adjust[0]
    assert adjust.prompt.tolist() == [1, 2, 3]
    assert adjust.output.tolist() == run.tokens["r", 0][:1]


@pytest.mark.parametrize(
    ("tokens", "sampling", "message"),
    [
        ([], {}, "the prompt is empty"),
        ([61], {}, "token id 61 is outside the vocabulary of 61"),
        ([-1], {}, "token id -1 is outside the vocabulary of 61"),
        ([1] * 64, {}, "the prompt has 64 tokens; this model serves 64 of prompt and answer together"),
        ([1] * 60, {"max_tokens": 5}, "60 prompt tokens and max_tokens 5 are 65; .* at most 4 fit"),
        ([1], {"n": 0}, "n is 0, it must be from 1 to 128"),
        ([1], {"temperature": float("nan")}, "temperature is nan"),
        ([1], {"top_p": 0.0}, "top_p must be above 0"),
        ([1], {"top_k": 62}, "top_k is 62, it must be from -1 to 61"),
        ([1], {"min_tokens": 9}, "min_tokens is 9, it must be from 0 to 8"),
        ([1], {"logprobs": 21}, "logprobs is 21, it must be from 0 to 20"),
        ([1], {"stop_token_ids": (61,)}, "stop_token_ids is 61"),
    ],
)
def test_refuses_what_can_never_be_served(runner: Make, tokens: list[int], sampling: dict, message: str) -> None:
    run = runner()
    with pytest.raises(RequestError, match=message):
        run.submit("r", tokens, **sampling)
    assert not run.engine.has_work


def test_an_id_in_use_is_refused(runner: Make) -> None:
    run = runner()
    run.submit("a", [1])
    with pytest.raises(RequestError, match="already in use"):
        run.submit("a", [2])


def test_a_lost_device_is_no_failed_step(runner: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runner()
    run.submit("a", [1])

    def lost(_: object) -> None:
        raise DeviceLostError("the GPU failed")

    monkeypatch.setattr(run.engine.backend, "step", lost)
    with pytest.raises(DeviceLostError):
        run.step()
    assert "a" not in {name for name, _ in run.final}, "nobody is told of an end that another process may change"


def test_a_device_lost_while_saving_is_lost(runner: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runner(blocks=6, host_blocks=20, max_running=4)
    for i in range(4):
        run.submit(str(i), [i] * 6, max_tokens=12, ignore_eos=True)

    def lost(_: object) -> None:
        raise DeviceLostError("the GPU failed")

    monkeypatch.setattr(run.engine.backend, "to_host", lost)
    with pytest.raises(DeviceLostError):
        run.finish()


def test_minus_zero_is_zero_to_the_sampler(runner: Make) -> None:
    run = runner()
    run.submit("a", [1], min_p=-0.0, temperature=-0.0)
    run.step()
    sample = run.engine.backend.batches[0].sample
    assert not np.signbit(sample.min_p[0])
    assert not np.signbit(sample.temperature[0])


def test_a_failed_step_ends_its_requests_and_no_others(runner: Make) -> None:
    run = runner(max_running=1)
    run.engine._failpoints = Failpoints("engine.step:raise@2")
    run.submit("a", [1], n=2, max_tokens=4)
    run.submit("b", [2], max_tokens=4)
    run.finish()
    assert {run.final["a", i].finish_reason for i in range(2)} == {"error"}
    assert run.final["a", 0].error == "the step this request was part of failed; the server's log says why"
    assert run.tokens["b", 0] == answer(runner, [2], max_tokens=4)
    assert run.engine.heartbeat > 4


def test_a_device_that_keeps_failing_stops_the_engine(runner: Make) -> None:
    run = runner(max_running=1)
    run.engine._failpoints = Failpoints("engine.step:raise@1")

    def broken(_: object) -> None:
        raise RuntimeError("device lost")

    run.engine.backend.step = broken
    for name in "abc":
        run.submit(name, [1])
    run.step()
    run.step()
    with pytest.raises(RuntimeError, match="device lost"):
        run.step()


def test_the_stats_count_what_is_there(runner: Make) -> None:
    run = runner(max_running=2, budget=8)
    run.submit("a", list(range(6)), max_tokens=8)
    run.submit("b", list(range(30, 50)), max_tokens=8)
    run.submit("c", list(range(9)), n=2, max_tokens=8)
    run.step()
    report = run.engine.stats()
    assert (report.running, report.waiting) == (2, 2)
    assert report.waiting_tokens == 9
    assert report.uncached_prompt_tokens == 9 + 18
    assert report.blocks_pinned == 2 + 5
    assert report.oldest_wait > 0
    assert report.requests == 3
    assert report.steps.count == 1
    assert report.steps.prefill == 8
    run.finish()
    report = run.engine.stats()
    assert report.blocks_pinned == 0
    assert report.generation_tokens == 32
    assert report.steps.rows == 32 - 4


def test_a_static_batch_runs_to_its_end_before_the_next(runner: Make) -> None:
    run = runner(max_running=2, budget=32, static_wait=0.0)
    for name, count in (("long", 40), ("short", 2), ("also-long", 40), ("also-short", 2)):
        run.submit(name, [1, 2], max_tokens=count)
    tokens = run.finish()
    running = [len(batch.seq_len) for batch in run.engine.backend.batches]
    assert [name for name, _ in run.order] == ["long", "also-long", "short", "also-short"], "sorted by possible length"
    assert running == [2] * 40 + [2] * 2, "nobody joins a batch that has begun"
    assert tokens["long", 0] == answer(runner, [1, 2], max_tokens=40)
    assert run.engine.counters.steps().idle_rows == 0


def test_a_static_batch_keeps_rows_of_finished_sequences_from_others(runner: Make) -> None:
    run = runner(max_running=2, static_wait=0.0)
    run.submit("a", [1], max_tokens=2)
    run.submit("b", [1, 2], max_tokens=9)
    run.step()
    run.submit("c", [1], max_tokens=1)
    run.finish()
    assert [name for name, _ in run.order] == ["a", "b", "c"]
    assert run.engine.counters.steps().idle_rows == 7


def test_a_static_batch_waits_to_fill_and_no_longer_than_told(runner: Make) -> None:
    # The runner's clock ticks once at every look.
    run = runner(max_running=3, static_wait=20.0)
    run.submit("a", [1], max_tokens=1)
    assert 10 < run.engine.delay() <= 20
    assert run.step() == []
    run.submit("b", [2], max_tokens=1)
    while not run.step():
        assert run.engine.heartbeat < 30
    assert set(run.tokens) == {("a", 0), ("b", 0)}, "both in one batch"
    assert run.engine.heartbeat > 10
    for name in "cde":
        run.submit(name, [1], max_tokens=1)
    assert run.engine.delay() == 0.0, "full"
