"""The queue's promises: no duplicates, one worker per key, back-off per key, earliest delay wins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from octavo_operator.app import workqueue
from octavo_operator.app.workqueue import WorkQueue
from octavo_operator.metrics.process import QueueMetrics

Start = Callable[..., WorkQueue[str]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    tasks: list[asyncio.Task[None]] = []

    def run(
        reconcile: Callable[[str], Awaitable[float | None]], workers: int = 2, pause: float = 0.0, **more: Any
    ) -> WorkQueue[str]:
        queue: WorkQueue[str] = WorkQueue(QueueMetrics(CollectorRegistry()), pause=pause, **more)
        tasks.extend(asyncio.create_task(queue.work(reconcile)) for _ in range(workers))
        return queue

    yield run
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_burst_is_one_pass(start: Start) -> None:
    seen: list[str] = []

    async def reconcile(key: str) -> None:
        seen.append(key)

    queue = start(reconcile)
    for number in range(10_000):
        queue.add(f"k{number % 10}")
    await settle()
    assert sorted(seen) == [f"k{n}" for n in range(10)]


async def test_a_key_added_while_worked_on_is_worked_on_once_more(start: Start) -> None:
    gate, passes, together = asyncio.Event(), 0, 0

    async def reconcile(key: str) -> None:
        nonlocal passes, together
        passes += 1
        together += 1
        assert together == 1, "one key has one worker"
        await gate.wait()
        together -= 1

    queue = start(reconcile, workers=4)
    queue.add("k")
    await settle()
    for _ in range(5):
        queue.add("k")
    await settle()
    assert passes == 1
    gate.set()
    await settle()
    assert passes == 2


async def test_keys_are_worked_on_side_by_side(start: Start) -> None:
    both = asyncio.Barrier(2)

    async def reconcile(key: str) -> None:
        await both.wait()

    queue = start(reconcile, workers=2)
    queue.add("a")
    queue.add("b")
    async with asyncio.timeout(30):
        while queue.longest_running() or both.n_waiting:  # noqa: ASYNC110 - the queue has no event for being idle
            await asyncio.sleep(0)


async def test_failures_back_off_per_key_and_success_forgets(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workqueue, "BASE_DELAY", 0.001)
    attempts = 0
    done = asyncio.Event()

    async def reconcile(key: str) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 4:
            raise RuntimeError("not yet")
        done.set()

    queue = start(reconcile)
    queue.add("k")
    async with asyncio.timeout(30):
        await done.wait()
    await settle()
    assert attempts == 4
    assert queue.add_rate_limited("k") == pytest.approx(0.001)


async def test_delays_double_up_to_a_bound(start: Start) -> None:
    async def reconcile(key: str) -> None: ...

    queue = start(reconcile)
    delays = [queue.add_rate_limited("k") for _ in range(2000)]
    assert delays[:3] == [0.05, 0.1, 0.2]
    assert delays[-1] == workqueue.MAX_DELAY


async def test_an_error_that_asks_for_patience_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: WorkQueue[str] = WorkQueue(QueueMetrics(CollectorRegistry()), lambda error: float(str(error)))
    delays: list[float] = []
    monkeypatch.setattr(queue, "add_after", lambda _, delay: delays.append(delay))
    failed = asyncio.Event()

    async def reconcile(key: str) -> None:
        failed.set()
        raise RuntimeError("7.5")

    task = asyncio.create_task(queue.work(reconcile))
    queue.add("k")
    await failed.wait()
    await settle()
    task.cancel()
    assert delays == [7.5]


async def test_the_earliest_delay_counts(start: Start) -> None:
    done = asyncio.Event()

    async def reconcile(key: str) -> None:
        done.set()

    queue = start(reconcile)
    queue.add_after("k", 60)
    queue.add_after("k", 0.01)
    queue.add_after("k", 60)
    async with asyncio.timeout(30):
        await done.wait()


async def test_a_returned_number_brings_the_key_back(start: Start) -> None:
    passes = 0
    done = asyncio.Event()

    async def reconcile(key: str) -> float | None:
        nonlocal passes
        passes += 1
        if passes == 3:
            done.set()
            return None
        return 0.001

    start(reconcile).add("k")
    async with asyncio.timeout(30):
        await done.wait()


async def test_between_two_passes_of_a_key_is_a_pause_and_other_keys_do_not_wait_for_it(start: Start) -> None:
    seen: list[str] = []

    async def reconcile(key: str) -> None:
        seen.append(key)

    queue = start(reconcile, pause=3600)
    for _ in range(50):
        queue.add("k")
        await settle()
    queue.add("other")
    await settle()
    assert seen == ["k", "other"]
    for _ in range(2):
        queue._paused("k")
        await settle()
    assert seen == ["k", "other", "k"]


async def test_what_is_not_worth_it_any_more_when_its_turn_comes_is_dropped(start: Start) -> None:
    seen: list[str] = []

    async def reconcile(key: str) -> None:
        seen.append(key)

    worth = {"a": False, "b": True}
    queue = start(reconcile, worth=worth.__getitem__)
    queue.add("a")
    queue.add("b")
    await settle()
    assert seen == ["b"]
    worth["a"] = True
    queue.add("a")
    await settle()
    assert seen == ["b", "a"]


async def test_a_failure_that_repeats_is_logged_once(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workqueue, "BASE_DELAY", 0.0)
    texts = iter(["quota", "quota", "quota", "gone", "quota"])
    done = asyncio.Event()

    async def reconcile(_: str) -> None:
        text = next(texts, None)
        if text is None:
            done.set()
        else:
            raise ValueError(text)

    with caplog.at_level("WARNING"):
        start(reconcile).add("k")
        await done.wait()
    assert [record.getMessage().split()[-1] for record in caplog.records] == ["quota", "gone", "quota"]
