"""A step launched before the tokens of the one before are known changes no answer, and sends what changed alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_common.failpoints import Failpoints
from octavo_inference.common.errors import DeviceLostError
from octavo_inference.engine.loop import EngineLoop

from .echo import Runner, alone, make_runner
from .late import Late, LateBackend
from .loads import LIMITS, Load, loads


def late(*, blocks: int = 64, max_running: int = 8, max_model_len: int = 64, **given: Any) -> Runner:
    backend = LateBackend(blocks, rows=max_running, longest=max_model_len)
    return make_runner(backend, max_running=max_running, max_model_len=max_model_len, **given)


@settings(max_examples=scaled(60), deadline=None)
@given(load=loads(9), blocks=st.integers(8, 24), limits=LIMITS)
def test_answers_are_those_of_steps_that_wait_for_each_other(load: Load, blocks: int, limits: dict[str, Any]) -> None:
    run = late(blocks=blocks, max_model_len=32, **limits)
    load.run(run)
    assert run.engine.backend.most_in_flight <= 2


def test_the_next_step_is_launched_before_this_ones_tokens_are_taken() -> None:
    run = late()
    run.submit("r", [1, 2, 3], max_tokens=4)
    assert run.step() == [], "nothing to hand out yet"
    assert len(run.engine.backend.steps) == 1
    assert [output.tokens for output in run.step()] == [alone([1, 2, 3], 1, 1)]
    assert len(run.engine.backend.steps) == 2
    run.finish()
    assert len(run.engine.backend.steps) == 4, "an end by length is foreseen: nothing is computed in vain"
    assert run.engine.backend.most_in_flight == 2


def test_an_end_that_nobody_could_foresee_costs_one_row() -> None:
    first, second = alone([1, 2, 3], 2, 1)
    run = late()
    run.submit("r", [1, 2, 3], max_tokens=9, stop_token_ids=(second,))
    run.finish()
    assert run.tokens["r", 0] == [first, second]
    assert len(run.engine.backend.steps) == 3


def test_switched_off_each_step_is_waited_for() -> None:
    run = late()
    run.engine._depth = 0
    run.submit("r", [1, 2, 3], max_tokens=4)
    assert [output.tokens for output in run.step()] == [alone([1, 2, 3], 1, 1)]
    run.finish()
    assert run.engine.backend.most_in_flight == 1


def test_an_abort_in_flight_frees_everything_and_leaves_nothing_to_wait_for() -> None:
    run = late()
    run.submit("a", [1, 2, 3], n=2)
    run.step()
    run.engine.abort("a")
    assert run.engine.has_work, "a step is on its way"
    assert run.engine.delay() == 0
    run.submit("a", [7], max_tokens=2)
    assert run.finish() == {("a", 0): alone([7], 2, 1)}
    assert run.engine.scheduler.pool.pinned == 0


def test_a_preempted_sequence_gets_the_token_that_was_on_its_way() -> None:
    for host_blocks in (0, 64):
        run = late(blocks=8, max_model_len=32, host_blocks=host_blocks)
        prompts = [[i, i + 1, i + 2] for i in range(4)]
        for i, prompt in enumerate(prompts):
            run.submit(str(i), prompt, max_tokens=20)
        tokens = run.finish()
        assert run.engine.scheduler.preemptions > 0
        assert [tokens[str(i), 0] for i in range(4)] == [alone(prompt, 20, 1) for prompt in prompts]


def test_generated_blocks_are_found_by_the_next_turn() -> None:
    run = late()
    run.submit("turn-1", list(range(6)), max_tokens=7)
    said = run.finish()["turn-1", 0]
    run.submit("turn-2", [*range(6), *said, 9, 9], max_tokens=1)
    run.finish()
    assert run.final["turn-2", 0].cached_tokens == 12


def test_penalties_name_tokens_that_are_still_on_their_way() -> None:
    run = late()
    run.submit("r", [1, 2, 3], presence_penalty=0.5, max_tokens=4)
    run.finish()
    seen = [batch.sample.adjust[0] for batch in run.engine.backend.batches]
    assert [adjust.prompt.tolist() for adjust in seen] == [[1, 2, 3]] * 4
    assert [adjust.output.tolist() for adjust in seen] == [run.tokens["r", 0][:i] for i in range(4)]


def test_ids_that_would_end_it_are_banned_before_min_tokens() -> None:
    run = late()
    run.submit("r", [1, 2, 3], stop_token_ids=(7, 3), min_tokens=2, max_tokens=4)
    run.finish()
    banned = [batch.sample.adjust[0] for batch in run.engine.backend.batches]
    assert [None if adjust is None else adjust.banned.tolist() for adjust in banned[:3]] == [
        [3, 7, 60],
        [3, 7, 60],
        None,
    ]


def test_a_step_that_fails_on_the_device_ends_what_was_built_on_it_and_no_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = late(max_running=1)
    run.submit("a", [1], max_tokens=6)
    run.submit("b", [2], max_tokens=4)
    run.step()
    run.step()
    handle = run.engine._pending[0].handle

    def fail() -> None:
        run.engine.backend._queue.clear()  # a device drops what was built on it, or computes it in vain
        raise RuntimeError("illegal address")

    handle.run = fail
    run.finish()
    assert run.final["a", 0].finish_reason == "error"
    assert run.tokens["a", 0] == alone([1], 1, 1)
    assert run.tokens["b", 0] == alone([2], 4, 1)
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_a_launch_that_fails_ends_its_requests_and_the_step_before_is_collected() -> None:
    run = late(max_running=2)
    run.engine._failpoints = Failpoints("engine.step:raise@3")
    run.submit("short", [1], max_tokens=2)
    run.submit("long", [2], max_tokens=6)
    run.submit("after", [3], max_tokens=3)
    run.finish()
    assert run.tokens["short", 0] == alone([1], 2, 1), "its last step was on its way"
    assert run.final["long", 0].finish_reason == "error"
    assert run.tokens["after", 0] == alone([3], 3, 1)


def test_a_lost_device_is_no_failed_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_: object) -> None:
        raise DeviceLostError("the GPU failed")

    run = late()
    run.submit("a", [1])
    run.step()
    monkeypatch.setattr(Late, "run", lost)
    with pytest.raises(DeviceLostError):
        run.step()
    assert not run.final


def test_logits_that_are_no_numbers_end_their_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    run = late()
    backend, step = run.engine.backend, run.engine.backend.step

    def damaged(batch: Any) -> Any:
        result = step(batch)
        for i, row in enumerate(batch.sample.row):
            owner = int(np.searchsorted(batch.query_start, row, side="right")) - 1
            if 50 in backend.kv[batch.block_table[0, owner]].reshape(-1)[: batch.seq_len[owner]]:
                result.tokens[i] = 0  # what the device puts in its table for a token that is none
                damaged.marked.append((result, i))  # type: ignore[attr-defined]
        return result

    damaged.marked = []  # type: ignore[attr-defined]
    collect = Late.collect

    def collected(self: Late) -> Any:
        result = collect(self)
        for marked, i in damaged.marked:  # type: ignore[attr-defined]
            if marked is result:
                result.tokens[i] = -1
        return result

    monkeypatch.setattr(backend, "step", damaged)
    monkeypatch.setattr(Late, "collect", collected)
    run.submit("good", [1, 2, 3], max_tokens=6)
    run.submit("bad", [4, 5, 6, 7, 50], n=2, max_tokens=6)
    run.finish()
    assert run.tokens["good", 0] == alone([1, 2, 3], 6, 1)
    assert {run.final["bad", index].finish_reason for index in range(2)} == {"error"}
    assert run.engine.scheduler.pool.pinned == 0


def test_time_that_is_up_with_a_first_token_on_its_way_is_an_error() -> None:
    run = late(pace=1.0)
    run.submit("r", [1, 2, 3], timeout=4.0)
    outputs = run.step()
    while not run.final:
        run.clock.now += 10
        outputs = run.step()
    assert outputs[0].finish_reason == "error"
    assert "before its first token" in (outputs[0].error or "")


def sent(backend: LateBackend) -> list[int]:
    """Integers that each step was told."""
    return [
        sum(len(change.values) for change in step.changes)
        + len(step.row)
        + len(step.query_start)
        + len(step.seq_len)
        + 4 * len(step.sample.row)
        for step in backend.steps
    ]


def test_a_decoding_step_sends_as_much_for_long_sequences_as_for_short_ones() -> None:
    told = {}
    for length in (8, 400):
        run = late(blocks=900, max_running=4, max_model_len=512, budget=2048)
        for i in range(4):
            run.submit(str(i), [i] * length, max_tokens=40)
        run.finish()
        told[length] = sent(run.engine.backend)[1:]
    assert told[8] == told[400]
    # Three numbers to say who stands where (and one for the end), four for what to choose; a block is new every fourth.
    assert set(told[8]) == {4 * 7 + 1, 4 * 8 + 1}
    assert told[8].count(4 * 8 + 1) == 10


def test_who_comes_is_told_once() -> None:
    run = late(budget=64)
    run.submit("a", [1] * 10, max_tokens=20)
    run.step()
    run.step()
    run.submit("b", [2] * 30, max_tokens=3)
    run.finish()
    came = [sum(change.field == "tokens" for change in step.changes) for step in run.engine.backend.steps]
    assert came[:4] == [1, 0, 1, 0]
    assert sum(came) == 2


def test_idle_moments_go_to_the_backend_until_it_has_enough() -> None:
    run = late()
    run.submit("r", [1], max_tokens=1)
    run.finish()
    loop = EngineLoop(run.engine)
    assert loop.poll_timeout() is None
    assert [loop.on_idle() for _ in range(3)] == [0.0, 0.0, None]
