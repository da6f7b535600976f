"""States of sequences: whatever is planned, shared or preempted, a step continues from the state of its own tokens.

`EchoBackend` checks that at every step.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_common.failpoints import Failpoints

from .echo import EchoBackend, Runner, alone, make_runner
from .late import LateBackend
from .loads import LIMITS, Load, loads
from .runs import RunningBackend

SNAPSHOTS = st.integers(0, 6)
SIZE = 4
STATES = {"host_state_blocks": 1}


def with_states(snapshots: int = 8, max_running: int = 8, **given: Any) -> Runner:
    backend = EchoBackend(given.pop("blocks", 64), state_slots=max_running + snapshots)
    return make_runner(backend, max_running=max_running, **STATES, **given)


def snapshots(run: Runner) -> int:
    states = run.engine.scheduler.states
    assert states is not None
    return states.cached


@settings(max_examples=scaled(80), deadline=None)
@given(
    load=loads(18, logprobs=(None, 1)),
    blocks=st.integers(10, 30),
    limits=LIMITS,
    left=SNAPSHOTS,
    ahead=st.booleans(),
    randomness=st.randoms(use_true_random=False),
)
def test_answers_do_not_depend_on_snapshots_rows_preemption_or_company(
    load: Load, blocks: int, limits: dict[str, Any], left: int, randomness: random.Random, *, ahead: bool
) -> None:
    rows = limits["max_running"]
    if ahead:
        backend: EchoBackend = LateBackend(blocks, rows=rows, longest=40, state_slots=rows + left)
    else:
        backend = RunningBackend(blocks, lambda: randomness.randint(1, 9), rows + left)
    run = make_runner(backend, max_model_len=40, pace=1e-6, **limits, **STATES)
    load.run(run)
    states = run.engine.scheduler.states
    assert states is not None
    assert states.pending == 0
    assert limits["caching"] or states.cached == 0


@settings(max_examples=scaled(30), deadline=None)
@given(load=loads(9), blocks=st.integers(10, 24), limits=LIMITS, left=SNAPSHOTS, failing=st.integers(1, 12))
def test_a_failed_step_leaves_no_slot_reserved(
    load: Load, blocks: int, limits: dict[str, Any], left: int, failing: int
) -> None:
    rows = limits["max_running"]
    backend = LateBackend(blocks, rows=rows, longest=40, state_slots=rows + left)
    run = make_runner(backend, max_model_len=40, **limits, **STATES)
    compute, count = backend.step, 0

    def step(batch: Any) -> Any:
        nonlocal count
        count += 1
        if count == failing:
            raise RuntimeError("the device says no")
        return compute(batch)

    backend.step = step  # type: ignore[method-assign]
    for i, (prompt, tokens, n, _) in enumerate(load.requests):
        run.submit(str(i), prompt, max_tokens=tokens, n=n, seed=5)
        for _ in range(load.arrivals[i]):
            run.step()
    run.finish()
    for (name, index), final in run.final.items():
        prompt, tokens, *_ = load.requests[int(name)]
        expected = alone(prompt, tokens, 5, index)
        got = run.tokens[name, index]
        assert got == (expected if final.finish_reason == "length" else expected[: len(got)])
    states = run.engine.scheduler.states
    assert states is not None
    assert states.pending == 0


def test_a_prompt_continues_from_the_last_border_with_a_snapshot() -> None:
    run = with_states()
    run.submit("a", [*range(13), 50], max_tokens=2)
    run.finish()
    run.submit("b", [*range(13), 51], max_tokens=2)
    run.finish()
    assert run.final["a", 0].cached_tokens == 0
    assert run.final["b", 0].cached_tokens == 12
    assert run.tokens["b", 0] == alone([*range(13), 51], 2, 1)


def test_blocks_without_a_snapshot_are_no_hit() -> None:
    run = with_states(snapshots=0)
    for name in ("a", "b"):
        run.submit(name, [*range(13), 50], max_tokens=2)
        run.finish()
    assert run.final["b", 0].cached_tokens == 0
    assert run.engine.scheduler.pool.cached > 0
    assert len(run.engine.backend.batches) == 4, "no chunk ends for a snapshot that cannot be kept"


def test_the_second_prompt_with_a_beginning_leaves_a_snapshot_where_it_ends() -> None:
    run = with_states(budget=64)
    system = list(range(17))
    for name, question in (("a", 50), ("b", 51), ("c", 52)):
        run.submit(name, [*system, *[question] * 12], max_tokens=1)
        run.finish()
    assert [run.final[name, 0].cached_tokens for name in "abc"] == [0, 0, 16]


def test_the_next_turn_of_a_chat_continues_within_the_answer() -> None:
    run = with_states()
    run.submit("turn-1", list(range(6)), max_tokens=30)
    said = run.finish()["turn-1", 0]
    run.submit("turn-2", [*range(6), *said, 9, 9], max_tokens=1)
    run.finish()
    assert run.final["turn-2", 0].cached_tokens == 32
    assert snapshots(run) <= 3, "an answer keeps only its latest"


def test_siblings_start_from_the_state_of_the_prompt() -> None:
    run = with_states()
    run.submit("r", list(range(9)), n=4, max_tokens=12, temperature=1.0)
    tokens = run.finish()
    assert [tokens["r", i] for i in range(4)] == [alone(list(range(9)), 12, 1, i) for i in range(4)]
    assert run.engine.backend.state_copies[:3] != []


@pytest.mark.parametrize("host_blocks", [0, 64])
def test_a_preempted_sequence_continues_from_the_host_or_a_snapshot(host_blocks: int) -> None:
    run = with_states(blocks=10, max_model_len=32, max_running=4, host_blocks=host_blocks)
    prompts = [[i, *range(9)] for i in range(4)]
    for i, prompt in enumerate(prompts):
        run.submit(str(i), prompt, max_tokens=20)
    tokens = run.finish()
    assert [tokens[str(i), 0] for i in range(4)] == [alone(prompt, 20, 1) for prompt in prompts]
    stats = run.engine.stats()
    assert stats.preemptions > 0
    assert (stats.swaps > 0) == (host_blocks > 0)
    if host_blocks:
        assert stats.recomputed == 0


def test_a_state_takes_its_place_among_the_blocks_of_the_host() -> None:
    run = make_runner(
        EchoBackend(10, state_slots=4), max_model_len=32, max_running=4, host_blocks=6, host_state_blocks=7
    )
    for i in range(4):
        run.submit(str(i), [i, *range(9)], max_tokens=20)
    run.finish()
    stats = run.engine.stats()
    assert stats.preemptions > 0
    assert stats.swaps == 0, "a state alone is more than the host keeps"


def test_a_failed_copy_to_the_host_is_recomputed() -> None:
    run = with_states(blocks=10, max_model_len=32, max_running=4, host_blocks=64)
    run.engine._failpoints = Failpoints("swap.out:raise@1")
    prompts = [[i, *range(9)] for i in range(4)]
    for i, prompt in enumerate(prompts):
        run.submit(str(i), prompt, max_tokens=20)
    tokens = run.finish()
    assert [tokens[str(i), 0] for i in range(4)] == [alone(prompt, 20, 1) for prompt in prompts]
    assert run.engine.stats().recomputed > 0


def test_a_reset_forgets_snapshots_and_those_on_their_way() -> None:
    run = with_states()
    run.submit("a", [*range(13), 50], max_tokens=3)
    run.step()
    run.engine.reset_cache()
    run.finish()
    run.submit("b", [*range(13), 50], max_tokens=3)
    run.finish()
    assert run.final["b", 0].cached_tokens == 0
    run.submit("c", [*range(13), 50], max_tokens=3)
    run.finish()
    assert run.final["c", 0].cached_tokens == 12


def test_numbers_that_are_none_take_their_snapshots_with_them() -> None:
    run = with_states()
    backend, compute = run.engine.backend, run.engine.backend.step

    def broken(batch: Any) -> Any:
        result = compute(batch)
        result.tokens[:] = -1
        return result

    run.submit("a", [*range(13), 50], max_tokens=9)
    run.step()
    run.step()
    assert snapshots(run) == 1
    backend.step = broken
    run.finish()
    assert run.final["a", 0].finish_reason == "error"
    assert snapshots(run) == 0


def test_snapshots_expire_with_their_policy() -> None:
    run = with_states()
    run.submit("a", [*range(13), 50], max_tokens=2, cache_policy="batch")
    run.finish()
    assert snapshots(run) == 1
    run.clock.now += 3600
    run.submit("b", [7], max_tokens=1)
    run.finish()
    assert snapshots(run) == 0


def test_without_chunks_a_prompt_is_computed_at_once_and_its_answer_leaves_snapshots() -> None:
    run = with_states(chunked=False, budget=32, max_model_len=32)
    run.submit("a", list(range(15)), max_tokens=17)
    said = run.finish()["a", 0]
    assert [len(batch.tokens) for batch in run.engine.backend.batches][:2] == [15, 1]
    run.submit("b", [*range(15), *said[:10]], max_tokens=1)
    run.finish()
    assert run.final["b", 0].cached_tokens == 16


def test_a_wrong_state_is_noticed_by_these_tests(caplog: pytest.LogCaptureFixture) -> None:
    run = with_states()
    run.submit("a", list(range(15)), max_tokens=3)
    run.step()
    run.engine.backend.states[:] = np.uint64(5)
    run.step()
    assert run.final["a", 0].finish_reason == "error"
    assert "continues from the state of other tokens" in caplog.text
