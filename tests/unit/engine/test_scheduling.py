"""Who starts, who yields, how long things are kept, and when a request is ended before it is finished."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo_common.failpoints import Failpoints
from octavo_common.fair_queue import AGING_SECONDS
from octavo_inference.common.errors import RequestError
from octavo_inference.core.block_pool import PoolError

Make = Callable[..., Any]


def started(run: Any) -> list[str]:
    return [name for name, _ in run.order]


def answer(runner: Make, prompt: list[int], **sampling: Any) -> list[int]:
    alone = runner(caching=False, budget=64)
    alone.submit("alone", prompt, **sampling)
    return alone.finish()["alone", 0]


def leaves_nothing(run: Any) -> None:
    run.engine.check()
    scheduler = run.engine.scheduler
    assert scheduler.pool.pinned == 0
    assert scheduler.rows.free == scheduler.max_running
    assert scheduler.host_free == scheduler.host_blocks


def test_a_level_of_priority_is_worth_the_same_as_ten_seconds_of_waiting(runner: Make) -> None:
    run = runner(max_running=1, pace=0.0)
    run.submit("low", [1], max_tokens=1)
    run.clock.now += AGING_SECONDS
    run.submit("high", [1], max_tokens=1, priority=2)
    run.submit("higher", [1], max_tokens=1, priority=3)
    run.finish()
    assert started(run) == ["higher", "high", "low"]
    run.submit("old", [1], max_tokens=1)
    run.clock.now += 2 * AGING_SECONDS
    run.submit("new", [1], max_tokens=1, priority=2)
    run.finish()
    assert started(run)[3:] == ["old", "new"], "as high as the other by now, and older"


def test_nobody_starves_behind_an_endless_row_of_higher_priority(runner: Make) -> None:
    run = runner(max_running=1)
    run.submit("low", [1], max_tokens=1, priority=-2)
    for i in range(100):
        run.submit(f"high-{i}", [1], max_tokens=1, priority=1)
        run.step()
    assert "low" in started(run)


def test_one_tenants_many_requests_do_not_stand_before_anothers_one(runner: Make) -> None:
    run = runner(max_running=2)
    for i in range(50):
        run.submit(f"many-{i}", [1, 2, 3], max_tokens=3, tenant="a")
    run.step()
    run.submit("one", [1, 2, 3], max_tokens=3, tenant="b")
    run.finish()
    assert started(run).index("one") <= 3


def test_tenants_get_equal_shares_of_tokens_not_of_requests(runner: Make) -> None:
    run = runner(max_running=2, caching=False)
    for i in range(60):
        run.submit(f"long-{i}", list(range(20)), max_tokens=20, tenant="long")
        run.submit(f"short-{i}", [1], max_tokens=2, tenant="short")
    while len([name for name in started(run) if name.startswith("short")]) < 40:
        run.step()
    # A long request counts 20 + 2 * 20, a short one 1 + 2 * 2.
    long = len([name for name in started(run) if name.startswith("long")])
    assert 2 <= long <= 5


def test_a_tenant_that_was_away_has_no_credit(runner: Make) -> None:
    run = runner(max_running=1, caching=False)
    run.submit("back", [1], max_tokens=1, tenant="back")
    run.finish()
    for i in range(30):
        run.submit(f"busy-{i}", [1], max_tokens=1, tenant="busy")
    for _ in range(20):
        run.step()
    for i in range(5):
        run.submit(f"back-{i}", [1], max_tokens=1, tenant="back")
    run.finish()
    turns = [name for name in started(run) if name != "back"]
    first = turns.index("back-0")
    assert 15 < first < 25
    assert [name.split("-")[0] for name in turns[first : first + 6]] == ["back", "busy"] * 3


def test_a_preempted_sequence_may_be_preempted_again_right_after_it_came_back(runner: Make) -> None:
    # Its number is then twice in the queue's heaps.
    run = runner(blocks=8, max_model_len=32, budget=8)
    for i in range(6):
        run.submit(str(i), list(range(i, i + 7)), max_tokens=24)
    tokens = run.finish()
    assert run.engine.scheduler.preemptions > 3
    for i in range(6):
        assert tokens[str(i), 0] == answer(runner, list(range(i, i + 7)), max_tokens=24)


def test_with_swap_a_preempted_sequence_is_copied_back_and_not_computed_again(runner: Make) -> None:
    prompts = [[i, i + 1, i + 2] for i in range(4)]
    computed = {}
    for host_blocks in (0, 64):
        run = runner(blocks=8, max_model_len=32, host_blocks=host_blocks, caching=False)
        for i, prompt in enumerate(prompts):
            run.submit(str(i), prompt, max_tokens=20)
        tokens = run.finish()
        for i, prompt in enumerate(prompts):
            assert tokens[str(i), 0] == answer(runner, prompt, max_tokens=20)
        assert run.engine.scheduler.preemptions > 0
        computed[host_blocks] = sum(len(batch.tokens) for batch in run.engine.backend.batches)
        leaves_nothing(run)
    assert computed[64] == 4 * (3 + 20 - 1), "each token once"
    assert computed[0] > computed[64]
    report = run.engine.stats()
    assert report.swaps == report.preemptions > 0


def test_a_full_host_computes_again(runner: Make) -> None:
    run = runner(blocks=8, max_model_len=32, host_blocks=3, caching=False)
    for i in range(4):
        run.submit(str(i), [i, i + 1, i + 2], max_tokens=20)
    tokens = run.finish()
    scheduler = run.engine.scheduler
    assert 0 < scheduler.swaps < scheduler.preemptions
    assert tokens["3", 0] == answer(runner, [3, 4, 5], max_tokens=20)
    leaves_nothing(run)


def test_what_waits_on_the_host_can_be_aborted(runner: Make) -> None:
    run = runner(blocks=8, max_model_len=32, host_blocks=64, caching=False)
    for i in range(4):
        run.submit(str(i), [i, i + 1, i + 2], max_tokens=20)
    while not run.engine.scheduler.swaps:
        run.step()
    for i in range(4):
        run.engine.abort(str(i))
    leaves_nothing(run)


@pytest.mark.parametrize("host_blocks", [0, 64])
@pytest.mark.parametrize("point", ["engine.step", "pool.allocate", "swap.out", "swap.in"])
@pytest.mark.parametrize("when", [1, 2, 5])
def test_a_fault_ends_its_requests_and_leaks_nothing(runner: Make, point: str, when: int, host_blocks: int) -> None:
    run = runner(blocks=8, max_model_len=32, host_blocks=host_blocks)
    run.engine._failpoints = run.engine.scheduler.tables._failpoints = Failpoints(f"{point}:raise@{when}")
    for i in range(4):
        run.submit(str(i), [i, i + 1, i + 2], max_tokens=20, n=1 + i % 2)
    tokens = run.finish()
    for i in range(4):
        run.submit(f"after-{i}", [i, i + 1, i + 2], max_tokens=20, n=1 + i % 2)
    tokens = run.finish()
    leaves_nothing(run)
    ended = {name for (name, _), output in run.final.items() if output.finish_reason == "error"}
    # At the first allocation nothing runs yet: who was to start goes on waiting.
    if point == "engine.step" or (point == "pool.allocate" and when > 1):
        assert ended
    elif point == "swap.out":
        assert not ended, "what cannot be swapped is computed again"
    for i in range(4):
        assert tokens[f"after-{i}", 0] == answer(runner, [i, i + 1, i + 2], max_tokens=20)


def test_a_deadline_ends_what_waits_with_an_error_and_what_runs_with_what_it_has(runner: Make) -> None:
    run = runner(max_running=1, pace=0.0)
    run.submit("runs", [1, 2], max_tokens=50, timeout=5.0)
    run.submit("waits", [3, 4], n=2, timeout=5.0)
    run.submit("patient", [5, 6], max_tokens=2)
    run.submit("quick", [5, 6], max_tokens=1, timeout=0.5, priority=9)
    run.step()
    run.step()
    run.clock.now += 5.0
    computed = len(run.engine.backend.batches)
    run.finish()
    ran = run.final["runs", 0]
    assert (ran.finish_reason, ran.stop_reason, len(run.tokens["runs", 0])) == ("length", "deadline", 1)
    for index in range(2):
        waited = run.final["waits", index]
        assert (waited.finish_reason, waited.stop_reason) == ("error", "deadline")
        assert waited.error is not None
        assert "its time of 5 s was up before its first token" in waited.error
    assert run.final["quick", 0].stop_reason is None, "finished in time"
    assert len(run.engine.backend.batches) == computed + 2, "nothing was computed for who waited"
    leaves_nothing(run)


def test_an_id_may_be_used_again_after_its_deadline_is_past(runner: Make) -> None:
    run = runner(pace=0.0)
    run.submit("r", [1], max_tokens=1, timeout=5.0)
    run.finish()
    run.submit("r", [1], max_tokens=30)
    run.step()
    run.clock.now += 10
    run.finish()
    assert run.final["r", 0].stop_reason is None


def test_deadlines_of_what_has_finished_are_forgotten(runner: Make) -> None:
    run = runner()
    for i in range(2000):
        run.submit(str(i), [1], max_tokens=1, timeout=80000.0)
        run.step()
    assert len(run.engine._live.deadlines) <= 65


@pytest.mark.parametrize(("field", "value"), [("priority", 11), ("priority", -11), ("timeout", 0.0)])
def test_bounds(runner: Make, field: str, value: float) -> None:
    with pytest.raises(RequestError, match=field):
        runner().submit("r", [1], **{field: value})


def hits(run: Any, prompt: list[int], **about: Any) -> int:
    before = run.engine.scheduler.hit_tokens
    run.submit(f"probe-{run.clock.now}-{before}-{len(run.final)}", prompt, max_tokens=1, **about)
    run.finish()
    return run.engine.scheduler.hit_tokens - before


@pytest.mark.parametrize(("policy", "seconds"), [("batch", 360), ("api", 3600), ("chat", 86400)])
def test_a_prefix_is_found_until_its_time_since_the_last_use_is_up(runner: Make, policy: str, seconds: int) -> None:
    run = runner(pace=0.0)
    prompt = list(range(9))
    assert hits(run, prompt, cache_policy=policy) == 0
    run.clock.now += seconds - 1
    assert hits(run, prompt, cache_policy=policy) == 8
    run.clock.now += seconds - 1
    assert hits(run, prompt, cache_policy="batch") == 8
    run.clock.now += seconds
    assert hits(run, prompt, cache_policy="batch") == 0
    run.clock.now += 86400
    run.submit("other", [50], max_tokens=1)
    run.finish()
    assert run.engine.scheduler.pool.cached == 0, "and its blocks are free"


def test_short_lived_work_takes_a_small_part_of_the_cache_and_yields_first(runner: Make) -> None:
    run = runner(blocks=20, budget=64)
    hits(run, list(range(17)), cache_policy="chat")
    for i in range(5):
        hits(run, [40 + i, *range(16)], cache_policy="batch")
    pool = run.engine.scheduler.pool
    assert pool.cached == 4 + 2, "a tenth of the pool"
    pool.changes()
    hits(run, list(range(18, 54)) + list(range(20)) + [1, 2, 3, 4])
    _, evicted = pool.changes()
    assert evicted
    assert hits(run, list(range(17))) == 16


def test_after_a_reset_nothing_from_before_is_found(runner: Make) -> None:
    run = runner(host_blocks=32)
    shared = list(range(12))
    hits(run, [*shared, 50])
    run.submit("running", [*shared, 51], max_tokens=12, n=2)
    run.submit("waiting", [*shared, 52], max_tokens=1)
    run.step()
    run.engine.reset_cache()
    assert hits(run, [*shared, 53]) == 0
    assert hits(run, [*shared, 53]) == 12, "what came after the reset is found"
    assert run.tokens["running", 0] == answer(runner, [*shared, 51], max_tokens=12)
    # What the running one computed on top of its old blocks is not.
    later = [*shared, 51, *run.tokens["running", 0]]
    assert hits(run, later) == 12
    leaves_nothing(run)


def test_logits_that_are_no_numbers_end_their_request_alone(runner: Make) -> None:
    run = runner()
    step = run.engine.backend.step

    def damaged(batch: Any) -> Any:
        result = step(batch)
        poisoned = [bool((batch.block_table[0, i] >= 0).any() and 50 in context(batch, i)) for i in owners(batch)]
        result.tokens[np.array(poisoned)] = -1
        return result

    def owners(batch: Any) -> list[int]:
        return [int(np.searchsorted(batch.query_start, row, side="right")) - 1 for row in batch.sample.row]

    def context(batch: Any, i: int) -> list[int]:
        return run.engine.backend.kv[batch.block_table[0, i]].reshape(-1)[: batch.seq_len[i]].tolist()

    run.engine.backend.step = damaged
    run.submit("good", [1, 2, 3], max_tokens=6)
    run.submit("bad", [4, 5, 6, 7, 50], n=2, max_tokens=6)
    run.finish()
    assert run.tokens["good", 0] == answer(runner, [1, 2, 3], max_tokens=6)
    for index in range(2):
        assert run.final["bad", index].finish_reason == "error"
        assert "not a number" in (run.final["bad", index].error or "")
    assert hits(run, [4, 5, 6, 7, 8, 9]) == 0, "nobody finds what it computed"
    leaves_nothing(run)


def test_blocks_are_accounted_for_when_nothing_is_left_to_do(runner: Make) -> None:
    run = runner(pace=0.0)
    run.submit("r", [1, 2, 3], max_tokens=2)
    run.finish()
    for seconds, checks in ((0, 1), (29, 1), (1, 2)):
        run.clock.now += seconds
        run.engine.on_idle()
        assert run.engine.counters.checks == checks
    run.engine.scheduler.pool.allocate(1)
    run.clock.now += 30
    with pytest.raises(PoolError, match="has ref 1, 0 sequences hold it"):
        run.engine.on_idle()


def test_wrong_accounting_is_no_failed_step(runner: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runner()
    run.submit("r", [1, 2, 3], max_tokens=4)
    monkeypatch.setattr(run.engine.scheduler.pool, "allocate", lambda _: None)
    with pytest.raises(PoolError, match="were thought to be available"):
        run.engine.step()


def test_an_engine_is_freed_when_it_is_dropped(runner: Make) -> None:
    run = runner()
    run.submit("r", [1, 2, 3], max_tokens=2, timeout=9.0)
    run.finish()
    backend = weakref.ref(run.engine.backend)
    gc.disable()
    try:
        del run
        assert backend() is None, "weights and pool of a dropped engine wait for the garbage collector"
    finally:
        gc.enable()


def test_a_prompt_is_a_hit_once_however_many_answers_it_has(runner: Make) -> None:
    run = runner(max_running=2)
    run.submit("r", list(range(1, 17)), max_tokens=2, n=6)
    run.finish()
    assert run.engine.scheduler.hit_tokens == 0
