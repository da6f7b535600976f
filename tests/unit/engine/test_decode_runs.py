"""Several decode steps per launch change no answer, no count and no block of the prefix cache."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_common.failpoints import Failpoints
from octavo_inference.core.decode_run import MOST_SECONDS
from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.request import Guidance

from .echo import CONFIG, EOS, EchoBackend, Runner, Ticks, alone, make_runner
from .loads import LIMITS, Load, loads
from .runs import RunningBackend, readable_pipe


def running(blocks: int = 64, pace: float = 1e-6, **given: Any) -> Runner:
    return make_runner(RunningBackend(blocks), pace=pace, **given)


def cached(run: Runner) -> set[bytes]:
    """The keys of the blocks in the prefix cache."""
    return set(run.engine.scheduler.pool.by_hash)


@settings(max_examples=scaled(60), deadline=None)
@given(
    # A sequence with log-probabilities rules out runs while it decodes.
    load=loads(18, logprobs=(None, 1)),
    blocks=st.integers(10, 40),
    limits=LIMITS,
    randomness=st.randoms(use_true_random=False),
)
def test_answers_are_those_of_single_steps(
    load: Load, blocks: int, limits: dict[str, Any], randomness: random.Random
) -> None:
    backend = RunningBackend(blocks, lambda: randomness.randint(1, 9))
    run = make_runner(backend, max_model_len=40, pace=1e-6, **limits)
    load.run(run)
    steps = run.engine.stats().steps
    assert steps.count == len(backend.batches)
    assert steps.rows + steps.prefill == sum(len(batch.tokens) for batch in backend.batches)


@settings(max_examples=scaled(30), deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 59), min_size=1, max_size=14), min_size=1, max_size=4),
    counts=st.lists(st.integers(1, 25), min_size=4, max_size=4),
    randomness=st.randoms(use_true_random=False),
)
def test_counts_and_the_prefix_cache_are_those_of_single_steps(
    prompts: list[list[int]], counts: list[int], randomness: random.Random
) -> None:
    found = []
    for backend in (EchoBackend(64), RunningBackend(64, lambda: randomness.randint(1, 9))):
        run = make_runner(backend, pace=1e-6, budget=64)
        for i, prompt in enumerate(prompts):
            run.submit(str(i), prompt, max_tokens=counts[i])
        run.finish()
        steps = run.engine.stats().steps
        contexts = (steps.rows, steps.context, steps.rows_rows, steps.rows_context, steps.context_context)
        found.append((run.tokens, cached(run), steps.count, steps.held_rows, contexts))
    assert found[0] == found[1]


def test_a_lone_answer_takes_runs_of_eight_steps() -> None:
    run = running(max_model_len=64)
    run.submit("r", [1, 2, 3], max_tokens=20)
    outputs = []
    while run.engine.has_work:
        outputs += run.step()
    assert [len(output.tokens) for output in outputs] == [1, 8, 8, 3]
    assert [output.finish_reason for output in outputs] == [None, None, None, "length"]
    assert run.tokens["r", 0] == alone([1, 2, 3], 20, 1)


def test_a_run_ends_with_the_first_sequence_that_ends() -> None:
    said = alone([1, 2, 3], 9, 1)
    run = running()
    run.submit("stops", [1, 2, 3], max_tokens=30, stop_token_ids=(said[4],))
    run.submit("long", [4], max_tokens=30)
    run.finish()
    assert run.tokens["stops", 0] == said[:5]
    assert run.final["stops", 0].stop_reason == said[4]
    assert run.engine.backend.ran[0] == 4
    assert run.tokens["long", 0] == alone([4], 30, 1)


def test_a_run_knows_the_ids_that_end_each_sequence() -> None:
    run = running()
    run.submit("a", [1], max_tokens=30, stop_token_ids=(7, 3))
    run.submit("b", [2], max_tokens=30, ignore_eos=True)
    run.submit("c", [3], max_tokens=30)
    run.step()
    run.step()
    planned = run.engine.backend.planned[0]
    assert planned.end_ids.tolist() == [3, 7, EOS, EOS]
    assert planned.end_start.tolist() == [0, 3, 3, 4]


@pytest.mark.parametrize(
    "given",
    [{"logprobs": 1}, {"logprob_token_ids": (1, 2)}, {"guidance": Guidance(after=(59,), thinking_budget=50)}],
    ids=lambda given: next(iter(given)),
)
def test_a_sequence_that_needs_the_engine_for_each_token_rules_out_runs(given: dict[str, Any]) -> None:
    run = running()
    run.submit("plain", [1], max_tokens=12)
    run.submit("other", [2], max_tokens=9, **given)
    while ("other", 0) not in run.final:
        run.step()
    assert not run.engine.backend.planned
    run.finish()
    assert run.engine.backend.planned


def test_runs_begin_once_min_tokens_are_there() -> None:
    run = running()
    run.submit("r", [1], max_tokens=12, min_tokens=3)
    run.finish()
    assert run.engine.backend.ran == [8]


def test_a_prompt_next_to_an_answer_rules_out_runs() -> None:
    run = running(budget=4)
    run.submit("r", [1], max_tokens=30)
    run.step()
    run.submit("long", list(range(20)), max_tokens=1)
    while ("long", 0) not in run.final:
        run.step()
    assert not run.engine.backend.planned


def test_a_prompt_that_pauses_waits_for_one_step_only() -> None:
    """A step in 17 measures the decodes alone."""
    clock, backend = Ticks(1e-6), RunningBackend(64)
    limits = EngineLimits(64, max_running=2, max_batched_tokens=2, max_queued=9, prefill_slowdown=1.5)
    run = Runner(Engine(backend, CONFIG, limits, clock=clock), clock)
    run.submit("r", [1], max_tokens=60)
    run.step()
    run.step()
    assert len(backend.planned) == 1
    run.submit("long", list(range(40)), max_tokens=1)
    begin = len(backend.batches)
    while ("long", 0) not in run.final:
        run.step()
    assert len(backend.planned) == 1
    assert [len(batch.tokens) for batch in backend.batches[begin:]].count(1) == 2


def test_a_first_token_waits_for_no_run() -> None:
    run = running(budget=4, max_running=4)
    run.submit("r", [1, 2, 3, 4, 5], max_tokens=9)
    outputs = []
    while run.engine.has_work:
        outputs += run.step()
    assert [len(output.tokens) for output in outputs] == [1, 8]


def test_sequences_that_cannot_start_do_not_rule_out_runs() -> None:
    run = running(max_running=1)
    run.submit("a", [1], max_tokens=10)
    run.submit("b", [2], max_tokens=10)
    run.finish()
    assert run.engine.backend.ran == [8, 8]


def test_a_message_ends_a_run() -> None:
    run = running()
    run.engine.message_fd = readable_pipe()
    run.submit("r", [1], max_tokens=9)
    run.finish()
    os.close(run.engine.message_fd)
    assert run.engine.backend.ran == [1] * 7


def test_steps_that_take_long_are_launched_alone() -> None:
    run = running(pace=0.0)
    run.submit("r", [1], max_tokens=20)
    for pace in (MOST_SECONDS, 0.0, 0.0):
        run.clock.pace = pace
        run.step()
    assert [len(batch.tokens) for batch in run.engine.backend.batches[:2]] == [1, 1]
    assert len(run.engine.backend.planned) == 1


def test_a_deadline_bounds_the_seconds_of_a_run() -> None:
    run = running(pace=0.0)
    run.submit("r", [1], max_tokens=60, timeout=2.0)
    run.step()
    run.step()
    run.clock.now = 1.99
    run.step()
    assert [planned.seconds for planned in run.engine.backend.planned] == [MOST_SECONDS, pytest.approx(0.01)]


def test_unused_blocks_are_given_back() -> None:
    run = make_runner(RunningBackend(64, lambda: 1), pace=1e-6)
    run.submit("r", [1, 2], max_tokens=20)
    for total in range(3, 12):
        run.step()
        assert run.engine.scheduler.pool.pinned == -(-(total - 1) // 4)


def test_a_run_evicts_nothing_from_the_prefix_cache() -> None:
    run = running(blocks=8, max_model_len=32)
    run.submit("first", list(range(12)), max_tokens=4)
    run.finish()
    kept = cached(run)
    assert len(kept) == 3
    run.submit("second", [50, 51], max_tokens=18)
    while ("second", 0) not in run.final:
        run.step()
        assert kept <= cached(run)
    assert run.tokens["second", 0] == alone([50, 51], 18, 1)


def test_logits_that_are_no_numbers_end_their_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    run = running()
    backend, step = run.engine.backend, run.engine.backend.step
    damaged_at = 8

    def damaged(batch: Any) -> Any:
        result = step(batch)
        for i, seen in enumerate(batch.seq_len):
            if backend.kv[batch.block_table[0, i, 0], 0] == 50 and seen >= damaged_at:
                result.tokens[i] = -1
        return result

    monkeypatch.setattr(backend, "step", damaged)
    run.submit("good", [1, 2, 3], max_tokens=20)
    run.submit("bad", [50, 4, 5], max_tokens=20)
    run.finish()
    assert run.tokens["good", 0] == alone([1, 2, 3], 20, 1)
    assert run.final["bad", 0].finish_reason == "error"
    assert run.tokens["bad", 0] == alone([50, 4, 5], damaged_at - 3, 1)
    assert run.engine.scheduler.pool.pinned == 0


def test_a_run_that_fails_ends_its_requests_and_leaks_nothing() -> None:
    run = running()
    run.engine._failpoints = Failpoints("engine.step:raise@2")
    run.submit("a", [1], max_tokens=20)
    run.step()
    run.step()
    assert run.final["a", 0].finish_reason == "error"
    run.submit("b", [2], max_tokens=20)
    run.finish()
    assert run.tokens["b", 0] == alone([2], 20, 1)
    assert run.engine.scheduler.pool.pinned == 0


def test_runs_are_counted_as_steps_of_equal_length() -> None:
    run = running(pace=1e-3)
    run.submit("r", [1, 2, 3], max_tokens=9)
    run.finish()
    steps = run.engine.stats().steps
    assert (steps.count, steps.rows, steps.context) == (9, 8, sum(range(4, 12)))
    assert np.isclose(steps.seconds_rows, steps.seconds * 8 / 9, rtol=0.5)
