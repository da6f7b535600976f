"""Requests on their way to the engine: how many are let in, and which outputs come back to whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from octavo_inference.common.errors import QueueFullError, RequestError
from octavo_inference.core.engine import Engine
from octavo_inference.core.request import Abort, Output, Request, ResetCache, SamplingParams
from octavo_inference.engine.ipc import EngineStep
from octavo_inference.engine.kv_events import KvEventLog
from octavo_inference.engine.loop import EngineLoop
from octavo_inference.engine.output_router import OutputRouter

from .conftest import Runner

Make = Callable[..., Runner]


class Served:
    """An engine behind a router, as in a server, with both ends of the socket in one process."""

    def __init__(self, engine: Engine) -> None:
        self.sent: list[Request | Abort | ResetCache] = []
        self.router = OutputRouter(self.sent.append, KvEventLog(1))
        self.router.loaded(engine.stats())
        self.outputs: list[Output] = []
        self._loop = EngineLoop(engine)

    def submit(self, *names: str, tokens: Sequence[int] = (1,), **sampling: Any) -> None:
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 8, "ignore_eos": True} | sampling)
        requests = [Request(id=name, tokens=list(tokens), sampling=params) for name in names]
        self.router.submit(requests, self.outputs.append)

    def compute(self) -> EngineStep:
        messages = list(self.sent)
        self.sent.clear()
        return self._loop.run_once(messages)

    def turn(self) -> None:
        self.router.deliver(self.compute())


@pytest.fixture
def served(runner: Make) -> Callable[..., Served]:
    return lambda **given: Served(runner(**given).engine)


async def test_the_queue_is_bounded(served):
    run = served(max_queued=2, max_running=1)
    run.submit("a")
    run.turn()
    run.submit("b")
    run.submit("c")
    with pytest.raises(QueueFullError, match="2 sequences wait already, 2 may"):
        run.submit("d")
    run.router.abort("b")
    run.submit("d")


async def test_a_burst_that_the_next_step_can_start_is_no_queue(served):
    run = served(max_queued=0, max_running=3, budget=16)
    for name in "abc":
        run.submit(name, tokens=[1, 2])
    with pytest.raises(QueueFullError):
        run.submit("d")
    run.turn()
    with pytest.raises(QueueFullError):
        run.submit("d")


async def test_what_blocks_keep_waiting_is_a_queue_although_rows_are_free(served):
    run = served(blocks=8, max_model_len=32, max_queued=1, max_running=8, budget=32)
    run.submit("a", tokens=range(20))
    run.submit("b", tokens=range(30, 50))
    run.turn()
    with pytest.raises(QueueFullError):
        run.submit("c")


async def test_before_the_engine_says_anything_no_more_than_rows_and_queue_are_let_in(served):
    run = served(max_queued=3, max_running=4)
    refused = 0
    for number in range(50):
        try:
            run.submit(str(number))
        except QueueFullError:
            refused += 1
    assert (run.router.sequences, len(run.sent), refused) == (7, 7, 43)


async def test_requests_are_let_in_together_or_not_at_all(served):
    run = served(max_queued=1, max_running=2)
    run.submit("a")
    with pytest.raises(QueueFullError):
        run.submit("b", "c", "d")
    assert (run.router.sequences, len(run.sent)) == (1, 1)
    run.submit("b", "c")
    assert run.router.sequences == 3


async def test_what_an_empty_server_could_not_take_is_refused_for_good(served):
    run = served(max_queued=1, max_running=2)
    with pytest.raises(RequestError, match="4 sequences; this server accepts 3 at once"):
        run.submit("a", "b", n=2)
    assert (run.router.sequences, run.sent) == (0, [])


async def test_a_queue_that_its_clients_left_is_empty(served):
    run = served(blocks=8, max_model_len=32, max_queued=0, max_running=8, budget=32)
    run.submit("a", tokens=range(20))
    run.submit("b", tokens=range(30, 50))
    run.turn()
    for name in "ab":
        run.router.abort(name)
    run.turn()
    run.submit("c")


async def test_siblings_that_wait_for_their_prompt_are_no_queue_where_rows_are_free(served):
    run = served(max_queued=0, max_running=4, budget=16, max_model_len=64)
    run.submit("a", tokens=range(40), n=3)
    run.turn()
    assert run.router.stats.waiting == 2
    run.submit("b")
    with pytest.raises(QueueFullError):
        run.submit("c")


async def test_a_sequence_stopped_here_puts_out_nothing_more(served):
    run = served()
    run.submit("a", n=2)
    run.turn()
    on_its_way = run.compute()
    run.router.abort("a", 0)
    known = len(run.outputs)
    run.router.deliver(on_its_way)
    while run.router.sequences:
        run.turn()
    assert {(output.id, output.index) for output in run.outputs[known:]} == {("a", 1)}


async def test_unknown_requests_are_aborted_without_a_word(served):
    run = served()
    run.router.abort("never")
    run.router.abort("never", 1)
    assert (run.sent, run.router.sequences) == ([], 0)
