"""However a request ends: its reservation is settled once, and nothing of it stays counted."""

from __future__ import annotations

import asyncio
import random

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.ports import free_port
from tests.support.tiers import scaled
from tests.support.waiting import eventually_async

from octavo_common.virtual_token_counter import cost
from octavo_gateway.discovery.endpoints import Deployment, Endpoint, table
from octavo_gateway.pool.model_pool import ModelPool
from octavo_gateway.pool.registry import ModelRegistry
from octavo_gateway.pool.replica_load import SentRequests
from octavo_gateway.pool.reservation import Ending, RequestOutcome
from octavo_gateway.queueing.hold_queue import Bounds, RequestAttributes
from octavo_gateway.routing.prompt_features import Prompt


def pool_of(*names: str, hold: bool = False) -> ModelPool:
    """Replicas that never report; the last one is a canary's."""
    registry = ModelRegistry(Bounds(), lambda: 1000.0, random.Random(0).random)
    ends = tuple(Endpoint(name, f"http://{name}", canary=name == names[-1]) for name in names)
    registry.update(
        table([Deployment("ns", "d", ("m",), hold=hold, endpoints=ends, canary_percent=50, canary_step="s")])
    )
    return registry.find("m").pool


def nothing_left(pool: ModelPool) -> None:
    assert (pool.in_flight, len(pool.queue), pool.queue.size, pool.queue.tokens) == (0, 0, 0, 0)
    traffic = pool.traffic()
    assert (traffic.in_flight, traffic.held, traffic.pods) == (0, 0, {})
    for replica in pool.replicas.values():
        load = replica.load
        assert load.in_flight == SentRequests()
        assert (load.growth, load.private) == (pytest.approx(0.0, abs=1e-6), pytest.approx(0.0, abs=1e-6))
        assert not load.unseen


def served(pool: ModelPool) -> float:
    """What the tenant has had, as its turn depends on it."""
    return pool.queue._fair.counter.served("t")


def counted(pool: ModelPool) -> object:
    """All that a second settle must not change."""
    loads = [(r.url, repr(r.load), r.failures, r.avoid_until) for r in pool.replicas.values()]
    return loads, pool.traffic(), served(pool), pool.lengths.variation.count, pool.router.index.assumed


@pytest.mark.parametrize("ending", Ending)
def test_a_second_settle_changes_nothing(ending):
    pool = pool_of("a", "b")
    keep, gone = (pool.reserve(Prompt(100, 400, (b"x", b"y")), RequestAttributes("t")) for _ in range(2))
    gone.sent(streamed=False)
    gone.first_token(0.1)
    gone.progress(7)
    pool.settle(RequestOutcome(gone, ending, 100, 7))
    once = counted(pool)
    for _ in range(3):
        pool.settle(RequestOutcome(gone, ending, 100, 7))
    assert counted(pool) == once
    assert pool.in_flight == 1
    pool.settle(RequestOutcome(keep, ending, 100, 7))
    nothing_left(pool)


@pytest.mark.parametrize("ending", Ending)
def test_only_what_a_replica_took_up_is_taken_to_be_cached_there(ending):
    pool = pool_of("a")
    prompt = Prompt(100, 400, (b"x", b"y"))
    pool.settle(RequestOutcome(pool.reserve(prompt), ending))
    assert (pool.router.index.match(prompt.keys, ["http://a"]) == [2]) == ending.computed


STAYS = st.lists(
    st.tuples(
        st.integers(1, 3000), st.booleans(), st.booleans(), st.floats(0, 900), st.sampled_from(Ending),
        st.integers(0, 3000), st.integers(0, 900), st.booleans(),
    ),
    max_size=30,
)  # fmt: skip


@settings(max_examples=scaled(60), deadline=None)
@given(STAYS, st.randoms(use_true_random=False))
def test_whatever_happens_all_counters_return(stays, chance):
    """Reports may be asked for and come at any time between; tenants pay what was computed for them."""
    pool, paid, open_ones = pool_of("a", "b", "c"), 0.0, []
    for number, (tokens, streamed, begins, made, ending, prompt, output, asks) in enumerate(stays):
        for replica in pool.replicas.values():
            replica.end_backoff()
            if asks:
                replica.asked(1000.0 + number)
            if begins:
                replica.load.reported()
        reservation = pool.reserve(Prompt(tokens, 4 * tokens, (b"%d" % (tokens % 3),)), RequestAttributes("t"))
        reservation.sent(streamed=streamed)
        if begins:
            reservation.first_token(0.1)
        reservation.progress(made)
        open_ones.append(RequestOutcome(reservation, ending, prompt, output))
        paid += cost(prompt, output)
        if chance.random() < 0.5:
            pool.settle(open_ones.pop(chance.randrange(len(open_ones))))
    assert pool.in_flight == len(open_ones)
    chance.shuffle(open_ones)
    for outcome in [*open_ones, *open_ones]:
        pool.settle(outcome)
    nothing_left(pool)
    assert served(pool) == pytest.approx(paid, abs=1e-3)
    told = [stay[4].ok for stay in stays if stay[4].ok is not None]
    canary = pool.traffic().canary
    assert canary.stable.requests + canary.canary.requests == len(told)
    assert canary.stable.errors + canary.canary.errors == told.count(False)


def test_an_answer_to_an_earlier_request_does_not_end_the_back_off():
    pool = pool_of("a")
    running, refused = pool.reserve(Prompt(10, 40)), pool.reserve(Prompt(10, 40))
    pool.settle(RequestOutcome(refused, Ending.DRAINING))
    pool.answered(running, None)
    assert pool.reserve(Prompt(10, 40)) is None
    pool.replicas["http://a"].avoid_until = 0.0
    later = pool.reserve(Prompt(10, 40))
    pool.answered(later, None)
    assert pool.replicas["http://a"].failures == 0


async def test_a_place_granted_to_a_client_that_has_left_costs_its_tenant_nothing():
    pool = pool_of("a", hold=True)
    pool.replicas["http://a"].back_off(1000.0)
    queued = pool.hold(10, Prompt(100, 400, (b"x",)), RequestAttributes("t"))
    pool.replicas["http://a"].end_backoff()
    pool.dispatch()
    assert queued.granted.done()
    pool.cancel(queued)
    nothing_left(pool)
    assert served(pool) == 0
    assert pool.router.index.assumed == 0
    pool.cancel(queued)
    nothing_left(pool)


# All ways out of the proxy.

DONE = b"data: [DONE]\n\n"
EVENT = b'data: {"n": 1}\n\n'
STREAM = {"model": "m", "stream": True, "messages": []}


@pytest.fixture
def endings(monkeypatch):
    """What is settled, in order; no reservation twice."""
    seen: list[RequestOutcome] = []
    settle = ModelPool.settle

    def recorded(pool, outcome):
        assert outcome.reservation not in [one.reservation for one in seen]
        seen.append(outcome)
        settle(pool, outcome)

    monkeypatch.setattr(ModelPool, "settle", recorded)
    return seen


def status(code: int, **headers: str):
    async def behave(request, body):
        return web.json_response({}, status=code, headers=headers)

    return behave


async def drain(request, body):
    return web.json_response({}, status=503, headers={"X-Octavo-Draining": "1"})


async def vanish(request, body):
    request.transport.abort()
    return web.Response()


async def half(request, body):
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "100"})
    await response.prepare(request)
    await response.write(b'{"half')
    request.transport.close()
    return response


async def babble(request, body):
    request.transport.write(b"this is no HTTP\r\n\r\n")
    request.transport.close()
    return web.Response()


def first(behave, then):
    """One of the pods, whichever comes first, does this; all others after it do that."""
    left = [behave]

    async def behaviour(request, body):
        return await (left.pop() if left else then)(request, body)

    return behaviour


@pytest.mark.parametrize(
    ("behave", "code", "expected"),
    [
        (status(200), 200, [Ending.FINISHED]),
        ([EVENT, DONE], 200, [Ending.FINISHED]),
        (status(400), 400, [Ending.REFUSED]),
        (status(429), 429, [Ending.REFUSED]),
        (status(500), 500, [Ending.FAILED]),
        (status(503), 503, [Ending.FAILED]),
        (babble, 502, [Ending.FAILED]),
        ([EVENT], 200, [Ending.BROKEN]),
        ("cut", 200, [Ending.BROKEN]),
        (half, 502, [Ending.BROKEN]),
        (first(vanish, status(200)), 200, [Ending.UNREACHED, Ending.FINISHED]),
        (first(drain, status(200)), 200, [Ending.DRAINING, Ending.FINISHED]),
        (first(drain, first(vanish, status(400))), 400, [Ending.DRAINING, Ending.UNREACHED, Ending.REFUSED]),
        (vanish, 503, [Ending.UNREACHED, Ending.UNREACHED]),
    ],
    ids=[
        "answered", "streamed", "refused", "too busy", "failed", "unavailable", "no HTTP", "without an end",
        "broken stream", "broken answer", "elsewhere after a failed connection", "elsewhere after a drain",
        "elsewhere twice", "nowhere",
    ],
)  # fmt: skip
async def test_every_end_of_an_exchange_is_settled_once(world, streams, endings, behave, code, expected):
    await world.start()
    if behave == "cut":
        behave = streams([EVENT], cut=True)
    pods = [await world.pod(streams(behave) if isinstance(behave, list) else behave) for _ in range(3)]
    pool = world.has(*(pod.endpoint() for pod in pods))
    async with world.post(STREAM if code == 200 else None) as response:
        assert response.status == code
        await response.read()
    assert [outcome.ending for outcome in endings] == expected
    nothing_left(pool)


async def never(request, body):
    await asyncio.Event().wait()


@pytest.mark.parametrize("begun", [True, False], ids=["within a stream", "before an answer"])
async def test_a_client_that_leaves_is_settled_once(world, streams, endings, begun):
    await world.start()
    pod = await world.pod(streams([EVENT, DONE], gate=asyncio.Event()) if begun else never)
    pool = world.has(pod.endpoint())
    call = asyncio.create_task(world.post(STREAM).__aenter__())
    await eventually_async(lambda: call.done() if begun else bool(pod.seen))
    call.cancel()
    await world.client.close()
    await eventually_async(lambda: pool.in_flight == 0 and world.status.requests == 0)
    assert [outcome.ending for outcome in endings] == [Ending.ABANDONED]
    nothing_left(pool)


@pytest.mark.parametrize(
    ("limits", "headers", "code"),
    [
        ({"seconds": 0.05}, {}, 503),
        ({}, {"X-Request-Timeout": "0.05"}, 504),
        ({"requests": 0}, {}, 503),
    ],
    ids=["held too long", "its time is up", "no room in the queue"],
)
async def test_what_is_held_and_never_sent_leaves_nothing_to_settle(world, endings, limits, headers, code):
    await world.start(bounds=Bounds(**limits))
    pool = world.has()
    async with world.post(headers=headers) as response:
        assert response.status == code
    assert endings == []
    nothing_left(pool)


async def test_a_client_that_leaves_while_it_is_held_leaves_nothing(world, endings):
    await world.start()
    pool = world.has()
    call = asyncio.create_task(world.post().__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1)
    call.cancel()
    await eventually_async(lambda: world.status.requests == 0)
    assert endings == []
    nothing_left(pool)


async def test_a_request_whose_time_is_up_when_its_turn_comes_is_settled_as_not_sent(world, endings, monkeypatch):
    await world.start()
    url = f"http://127.0.0.1:{free_port()}"
    pool = world.has(Endpoint(url, url))
    monkeypatch.setattr("octavo_gateway.http.call.Call.left", lambda call: 0.0)
    async with world.post(headers={"X-Request-Timeout": "5"}) as response:
        assert response.status == 504
    assert [outcome.ending for outcome in endings] == [Ending.NOT_SENT]
    nothing_left(pool)
