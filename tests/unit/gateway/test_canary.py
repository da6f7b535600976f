"""Canaries: who gets which share of the requests, and what is counted of the answers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled
from tests.support.waiting import eventually_async

from octavo_gateway.discovery.endpoints import Deployment, Endpoint, table
from octavo_gateway.pool.registry import ModelRegistry
from octavo_gateway.pool.reservation import Ending, RequestOutcome
from octavo_gateway.queueing.hold_queue import Bounds
from octavo_gateway.routing.canary import split
from octavo_gateway.routing.prompt_features import Prompt
from octavo_protocol.load import TTFT_BOUNDS, LoadReport

STEP = "abc-0"


def endpoint(name: str, *, canary: bool, ready: bool = True) -> Endpoint:
    return Endpoint(name, f"http://{name}:8000", "", ready, canary)


def pool_of(endpoints, percent, seed=0, step=STEP):
    registry = ModelRegistry(Bounds(), lambda: 1000.0, random.Random(seed).random)
    found = Deployment("ns", "d", ("m",), endpoints=endpoints, canary_percent=percent, canary_step=step)
    registry.update(table([found]))
    return registry, registry.find("m").pool


def report(blocks=1000, rows=64):
    zero = dict.fromkeys(
        (
            *("blocks_pinned", "blocks_cached", "running", "waiting", "waiting_tokens", "uncached_prompt_tokens"),
            *("preemptions", "requests", "prompt_tokens", "generation_tokens", "prefix_hit_tokens"),
        ),
        0,
    )
    fixed = {"sequence": 1, "start_time": 1.0, "model": "m", "block_size": 32, "oldest_wait": 0.0}
    rest = {"max_batched_tokens": 512, "max_waiting": 9, "ready": True, "draining": False}
    return LoadReport(**zero, **fixed, **rest, blocks_total=blocks, max_running=rows)


@pytest.mark.parametrize("percent", [0, 1, 5, 20, 50, 90, 100])
def test_the_share_is_kept(percent):
    chance = random.Random(percent).random
    sent = Counter(split(["stable"], ["canary"], percent, chance)[0] for _ in range(20_000))
    # Five standard deviations at one half are 1.8 points.
    assert abs(100 * sent["canary"] / 20_000 - percent) < 1.8


@settings(max_examples=scaled(20), deadline=None)
@given(
    percent=st.integers(1, 99),
    stable=st.integers(1, 4),
    canary=st.integers(1, 3),
    seed=st.integers(0, 1000),
    running=st.integers(1, 40),
)
def test_inside_a_track_the_least_loaded_pod_is_chosen(percent, stable, canary, seed, running):
    pods = [endpoint(f"s{n}", canary=False) for n in range(stable)]
    pods += [endpoint(f"c{n}", canary=True) for n in range(canary)]
    registry, found = pool_of(tuple(pods), percent, seed)
    open_reservations, chance = [], random.Random(seed + 1)
    for _ in range(150):
        for _, replica in registry.replicas():
            replica.asked(1000.0)
            replica.reported(report())
        busy = {u.endpoint.name: u.load.in_flight.requests for _, u in registry.replicas()}
        reservation = found.reserve(Prompt(50, 50))
        chosen = reservation.replica.endpoint
        track = [u.endpoint.name for _, u in registry.replicas() if u.endpoint.canary is chosen.canary]
        # One request of 64 rows is within the router's tie.
        assert busy[chosen.name] <= min(busy[name] for name in track) + 1
        open_reservations.append(reservation)
        if len(open_reservations) > running:
            found.settle(
                RequestOutcome(open_reservations.pop(chance.randrange(len(open_reservations))), Ending.FINISHED)
            )


def test_without_a_ready_pod_a_track_leaves_its_requests_to_the_other():
    stable, canary = endpoint("s", canary=False), endpoint("c", canary=True)
    for pods, expected in (
        ((stable, replace(canary, ready=False)), "s"),
        ((replace(stable, ready=False), canary), "c"),
    ):
        _, found = pool_of(pods, 50)
        assert {found.reserve(Prompt(1, 1)).replica.endpoint.name for _ in range(50)} == {expected}


def test_a_canary_without_a_share_gets_nothing_even_when_nobody_else_is_there():
    _, found = pool_of((endpoint("c", canary=True),), 0, step="")
    assert not found.available()
    assert found.reserve(Prompt(1, 1)) is None


def test_held_requests_are_released_by_share_and_where_there_is_room():
    pods = (endpoint("s", canary=False), endpoint("c", canary=True))
    registry, found = pool_of(pods, 100)
    found.deployment = replace(found.deployment, hold=True)
    for _, replica in registry.replicas():
        replica.asked(1000.0)
        replica.reported(report(rows=2))
    # The canary is full after two: the rest goes where there is room.
    reservations = [found.reserve(Prompt(1, 1)) for _ in range(4)]
    assert Counter(reservation.replica.endpoint.name for reservation in reservations) == {"c": 2, "s": 2}


def test_a_new_step_counts_anew_and_late_answers_count_where_they_were_sent():
    pods = (endpoint("c", canary=True),)
    registry, found = pool_of(pods, 50)
    reservation = found.reserve(Prompt(1, 1))
    following = Deployment("ns", "d", ("m",), endpoints=pods, canary_percent=80, canary_step="abc-1")
    registry.update(table([following]))
    found.settle(RequestOutcome(reservation, Ending.FAILED))
    assert found.traffic().canary.step == "abc-1"
    assert found.traffic().canary.canary.requests == 0
    registry.update(table([replace(following, canary_step="")]))
    assert found.traffic().canary is None


async def _refuse(request, body):
    return web.json_response({"error": {}}, status=500)


async def _busy(request, body):
    return web.json_response({"error": {}}, status=429)


async def _drain(request, body):
    return web.json_response({"error": {}}, status=503, headers={"X-Octavo-Draining": "1"})


async def _vanish(request, body):
    request.transport.abort()
    return web.Response()


DONE, ERROR = b"data: [DONE]\n\n", b'data: {"error": {"message": "x"}}\n\n'


@pytest.mark.parametrize(
    ("behaviour", "counted"),
    [
        ("plain", (1, 0, 0)),
        ([b": keep-alive\n\n", b'data: {"n": 1}\n\n', DONE], (1, 0, 1)),
        ([b'data: {"n": 1}\n\n', ERROR], (1, 1, 1)),
        ("cut", (1, 1, 1)),
        (_refuse, (1, 1, 0)),
        (_busy, (1, 0, 0)),
        (_vanish, (2, 2, 0)),
        (_drain, (0, 0, 0)),
    ],
)
async def test_what_counts_as_an_answer_and_what_as_an_error(world, streams, behaviour, counted):
    if isinstance(behaviour, list):
        pod = await world.pod(streams(behaviour))
    elif behaviour == "cut":
        pod = await world.pod(streams([b'data: {"n": 1}\n\n'], cut=True))
    else:
        pod = await world.pod(*(() if behaviour == "plain" else (behaviour,)))
    await world.start()
    one = replace(pod.endpoint(), canary=True)
    second = replace(one, url=one.url.replace("127.0.0.1", "localhost"), name="again")
    pods = (one, second) if counted[0] == 2 else (one,)
    found = Deployment("ns", "d", ("m",), endpoints=pods, canary_percent=100, canary_step=STEP)
    world.registry.update(table([found]))
    async with world.post() as response:
        await response.read()
    traffic = world.registry.find("m").pool.traffic().canary
    assert (traffic.canary.requests, traffic.canary.errors, sum(traffic.canary.ttft)) == counted
    assert traffic.stable.requests == 0


async def test_a_client_that_leaves_is_nobodys_error(world, streams):
    pod = await world.pod(streams([b'data: {"n": 1}\n\n', DONE], gate=asyncio.Event()))
    await world.start()
    one = replace(pod.endpoint(), canary=True)
    found = Deployment("ns", "d", ("m",), endpoints=(one,), canary_percent=100, canary_step=STEP)
    world.registry.update(table([found]))
    async with world.post() as response:
        await response.content.readany()
        response.close()
    pool = world.registry.find("m").pool
    await eventually_async(lambda: pool.in_flight == 0)
    assert pool.traffic().canary.canary.requests == 0


def test_times_are_counted_in_classes():
    _, found = pool_of((endpoint("c", canary=True),), 100)
    for seconds in (0.0, TTFT_BOUNDS[3], TTFT_BOUNDS[-1] + 1):
        found.reserve(Prompt(1, 1)).first_token(seconds)
    counts = found.traffic().canary.canary.ttft
    assert [index for index, count in enumerate(counts) if count] == [0, 3, len(TTFT_BOUNDS)]
