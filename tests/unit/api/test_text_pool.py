"""Tokenising takes turns: between clients, between requests, and with the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
from tests.support.waiting import eventually_async

from octavo_inference.server.intake import BodyReservation, Intake, Turns
from octavo_inference.server.text_pool import TextPool


@pytest.fixture
def pool():
    pool = TextPool(threads=1)
    yield pool
    pool.close()


class Gate:
    """Steps that wait for `open`, and the order in which they began."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.began: list[str] = []

    def step(self, name: str):
        def run() -> str:
            self.began.append(name)
            assert self.open.wait(30)
            return name

        return run


async def test_the_steps_of_a_job_run_in_order(pool):
    assert await pool.run("a", [lambda n=n: n for n in range(5)]) == [0, 1, 2, 3, 4]
    assert await pool.run("a", []) == []


async def test_a_failing_step_is_raised_and_ends_its_job(pool):
    ran: list[int] = []

    def fail():
        raise KeyError("x")

    with pytest.raises(KeyError):
        await pool.run("a", [lambda: ran.append(1), fail, lambda: ran.append(2)])
    assert ran == [1]
    assert await pool.run("a", [lambda: 3]) == [3]


async def test_even_an_error_that_is_no_exception_frees_its_thread(pool):
    class OddError(BaseException):
        pass

    def fail():
        raise OddError

    with pytest.raises(OddError):
        await pool.run("a", [fail])
    assert await pool.run("a", [lambda: 3]) == [3]


async def test_a_request_with_many_prompts_lets_another_request_in_between(pool):
    gate = Gate()
    long = asyncio.create_task(pool.run("a", [gate.step(f"long {n}") for n in range(4)]))
    await eventually_async(lambda: bool(gate.began))
    short = asyncio.create_task(pool.run("a", [gate.step("short")]))
    await eventually_async(lambda: pool.waiting == 1)
    gate.open.set()
    await asyncio.gather(long, short)
    assert gate.began.index("short") < gate.began.index("long 2")


async def test_a_client_with_many_requests_does_not_delay_another_client(pool):
    gate = Gate()
    many = [asyncio.create_task(pool.run("many", [gate.step(f"many {n}")])) for n in range(8)]
    await eventually_async(lambda: bool(gate.began) and pool.waiting == 7)
    one = asyncio.create_task(pool.run("one", [gate.step("one")]))
    await eventually_async(lambda: pool.waiting == 8)
    gate.open.set()
    await asyncio.gather(one, *many)
    assert gate.began.index("one") == 1


async def test_cancelled_work_that_has_not_begun_is_dropped(pool):
    gate = Gate()
    running = asyncio.create_task(pool.run("a", [gate.step("first"), gate.step("second")]))
    await eventually_async(lambda: bool(gate.began))
    waiting = asyncio.create_task(pool.run("b", [gate.step("never")]))
    await eventually_async(lambda: pool.waiting == 1)
    for task in (running, waiting):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert pool.waiting == 0
    gate.open.set()
    assert await pool.run("a", [lambda: "after"]) == ["after"]
    assert gate.began == ["first"]


async def test_more_bytes_than_allowed_are_refused_until_others_are_given_back():
    refused: list[int] = []
    intake = Intake(max_bytes=100, on_refusal=lambda: refused.append(1))
    first, second, third = BodyReservation(intake, "a"), BodyReservation(intake, "b"), BodyReservation(intake, "c")
    assert first.grow(50)
    assert second.grow(40)
    assert not third.grow(20)
    assert (intake.held, len(refused)) == (90, 1)
    second.release()
    second.release()
    assert third.grow(20)
    assert intake.held == 70


async def test_one_client_leaves_half_of_the_bytes_to_others():
    intake = Intake(max_bytes=100)
    assert BodyReservation(intake, "a").grow(50)
    assert not BodyReservation(intake, "a").grow(1)
    assert BodyReservation(intake, "b").grow(50)


async def test_large_bodies_take_turns_by_client():
    turns = Turns(places=1)
    order: list[str] = []

    async def work(client: str) -> None:
        await turns.enter(client)
        order.append(client)
        await asyncio.sleep(0)
        turns.leave()

    await turns.enter("first")
    tasks = [asyncio.create_task(work(client)) for client in ("a", "a", "a", "b")]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.sleep(0)
    assert order == []
    turns.leave()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order in (["a", "b", "a"], ["b", "a", "a"])
    await asyncio.wait_for(turns.enter("last"), 1)


async def test_a_place_granted_to_a_cancelled_waiter_goes_to_the_next():
    turns = Turns(places=1)
    await turns.enter("a")
    waiting = [asyncio.create_task(turns.enter(client)) for client in ("b", "c")]
    await asyncio.sleep(0)
    turns.leave()
    waiting[0].cancel()
    await asyncio.wait_for(waiting[1], 1)
    assert waiting[0].cancelled()
    turns.leave()
    await asyncio.wait_for(turns.enter("d"), 1)
