"""What the gateway does on its own: ask pods for their load, ask the operator for a replica."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from urllib.parse import urlsplit

import msgspec
import pytest
from aiohttp import web
from tests.support.waiting import eventually_async

from octavo_gateway.app import load_poller
from octavo_gateway.app.run import replica_session
from octavo_gateway.app.wake import Waker
from octavo_gateway.queueing.hold_queue import Bounds
from octavo_protocol.load import LoadReport


def report(**fields) -> LoadReport:
    numbers = {field.name for field in msgspec.structs.fields(LoadReport) if field.type is int}
    values = dict.fromkeys(numbers, 0) | {
        "start_time": 1.0,
        "model": "m",
        "block_size": 32,
        "blocks_total": 100,
        "oldest_wait": 0.0,
        "max_running": 8,
        "max_batched_tokens": 512,
        "max_waiting": 8,
        "ready": True,
        "draining": False,
    }
    return LoadReport(**(values | fields))


def reporting(**fields):
    async def behave(request, body):
        return web.json_response(body=load_poller.msgspec.json.encode(report(**fields)))

    return behave


@pytest.fixture
async def session():
    async with replica_session() as session:
        yield session


@pytest.fixture
async def polling(world, session):
    await world.start()
    task = asyncio.create_task(load_poller.poll(world.registry, session))
    yield world
    task.cancel()


async def with_admin(world, **fields):
    pod = await world.pod()
    admin = await world.pod(reporting(**fields))
    return pod, replace(pod.endpoint(), admin_url=admin.url)


async def test_requests_go_where_the_reports_say_there_is_room(polling):
    full, endpoint = await with_admin(polling, blocks_pinned=90, running=8)
    empty, other = await with_admin(polling)
    pool = polling.has(endpoint, other)
    await eventually_async(lambda: all(u.report for u in pool.replicas.values()))
    for _ in range(6):
        (await polling.post()).release()
    assert (len(full.seen), len(empty.seen)) == (0, 6)


async def test_a_pod_that_reports_draining_gets_nothing(polling):
    leaving, endpoint = await with_admin(polling, draining=True)
    staying, other = await with_admin(polling, blocks_pinned=90)
    pool = polling.has(endpoint, other)
    await eventually_async(lambda: all(u.report for u in pool.replicas.values()))
    for _ in range(6):
        (await polling.post()).release()
    assert (len(leaving.seen), len(staying.seen)) == (0, 6)


@pytest.mark.parametrize("answer", [b"{}", b"\xff", b'{"sequence": "x"}'])
async def test_a_malformed_report_is_ignored(polling, answer):
    async def nonsense(request, body):
        return web.Response(body=answer)

    admin = await polling.pod(nonsense)
    pod = await polling.pod()
    polling.has(replace(pod.endpoint(), admin_url=admin.url))
    await eventually_async(lambda: bool(admin.seen))
    async with polling.post() as response:
        assert response.status == 200


async def test_a_report_that_nobody_foresaw_does_not_end_the_poll_of_the_others(polling, caplog):
    """Deep nesting, also in a field that nobody knows, is a RecursionError and no malformed report."""

    async def deep(request, body):
        return web.Response(body=b'{"deep": ' + b"[" * 200_000)

    odd, well = await polling.pod(deep), await polling.pod(reporting())
    pod = await polling.pod()
    pool = polling.has(*(replace(pod.endpoint(name=n), url=n, admin_url=a.url) for n, a in (("a", odd), ("b", well))))
    await eventually_async(lambda: pool.reports.rejected.get("unexpected", 0) >= 2)
    before = pool.replicas["b"].load.asks
    await eventually_async(lambda: pool.replicas["b"].load.asks > before and pool.replicas["b"].report is not None)
    assert pool.replicas["a"].report is None
    (said,) = [record for record in caplog.records if "RecursionError" in record.getMessage()]
    assert said.exc_info


async def test_megabytes_are_not_read_on_and_a_pod_is_asked_once_at_a_time(polling, caplog):
    gate = asyncio.Event()

    async def endless(request, body):
        response = web.StreamResponse()
        await response.prepare(request)
        while not gate.is_set():
            await response.write(bytes(100_000))
        return response

    admin = await polling.pod(endless)
    pod = await polling.pod()
    pool = polling.has(replace(pod.endpoint(), admin_url=admin.url))
    await eventually_async(lambda: pool.reports.rejected == {"size": 3})
    gate.set()
    assert [request.query.get("cache_after") for request, _ in admin.seen][:3] == ["0", None, None]
    assert len([record for record in caplog.records if "longer than 2097152 bytes" in record.message]) == 1
    async with polling.post() as response:
        assert response.status == 200


async def test_a_pod_with_too_large_a_cache_is_known_by_its_load(polling):
    async def behave(request, body):
        found = json.loads(load_poller.msgspec.json.encode(report(running=3)))
        if "cache_after" in request.query:
            found["cache"] = {"sequence": 7, "reset": True, "added": "A" * 3_000_000, "removed": ""}
        return web.json_response(found)

    admin = await polling.pod(behave)
    pod = await polling.pod()
    pool = polling.has(replace(pod.endpoint(), admin_url=admin.url))
    await eventually_async(lambda: any(u.report and u.report.running == 3 for u in pool.replicas.values()))
    assert pool.reports.rejected == {"size": 1}


async def test_a_pod_is_asked_for_what_changed_since(polling):
    asked = []

    async def behave(request, body):
        asked.append(request.query["cache_after"])
        cache = {"sequence": 7, "reset": len(asked) == 1, "added": "", "removed": ""}
        return web.json_response(json.loads(load_poller.msgspec.json.encode(report())) | {"cache": cache})

    admin = await polling.pod(behave)
    pod = await polling.pod()
    polling.has(replace(pod.endpoint(), admin_url=admin.url))
    await eventually_async(lambda: asked == ["0", "7"])


async def test_held_requests_are_released_as_the_pool_allows(polling):
    """Pool of 3,200 tokens, 0.9 of it to release into: three requests of about 1,000 tokens do not all fit."""
    pool = polling.has()
    # Different from the start: a prefix that they shared would be held once.
    bodies = [{"model": "m", "prompt": letter * 4000} for letter in "xyz"]
    calls = [asyncio.create_task(polling.post(body, "/v1/completions").__aenter__()) for body in bodies]
    await eventually_async(lambda: len(pool.queue) == 3)
    gate = asyncio.Event()
    pod, endpoint = await with_admin(polling)

    async def wait(request, body):
        await gate.wait()
        return web.json_response({})

    pod.behave = wait
    polling.has(replace(endpoint, ready=False))
    (replica,) = pool.replicas.values()
    replica.asked(pool.clock())
    pool.take_report(replica, report(), 0)
    polling.has(endpoint)
    await eventually_async(lambda: len(pod.seen) == 2)
    assert len(pool.queue) == 1
    gate.set()
    for response in await asyncio.gather(*calls):
        response.release()
    assert len(pod.seen) == 3


class Operator:
    def __init__(self, statuses):
        self.statuses = list(statuses)
        self.calls = []

    async def __call__(self, request, body):
        self.calls.append((request.path, json.loads(body)))
        return web.Response(status=self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0])


async def test_the_operator_is_woken_until_it_accepts(world, session):
    await world.start(bounds=Bounds(seconds=5))
    operator = Operator([421, 503, 202])
    parts = urlsplit((await world.pod(operator)).url)
    waker = Waker(world.registry, session, world.metrics, parts.hostname, parts.port, random.Random(1).random)
    task = asyncio.create_task(waker.run())
    pool = world.has()
    await asyncio.sleep(0)
    assert not operator.calls
    call = asyncio.create_task(world.post().__aenter__())
    await eventually_async(lambda: len(operator.calls) == 3)
    assert operator.calls[0] == ("/v1/octavo/wake", {"namespace": "ns", "name": "d"})
    pod = await world.pod()
    world.has(pod.endpoint())
    (await call).release()
    assert len(pool.queue) == 0
    assert len(operator.calls) == 3
    task.cancel()


async def test_an_operator_that_is_away_is_tried_again(world, session):
    await world.start()
    waker = Waker(world.registry, session, world.metrics, "octavo.invalid", 1, random.Random(1).random)
    task = asyncio.create_task(waker.run())
    pool = world.has()
    call = asyncio.create_task(world.post().__aenter__())
    failed = {"result": "failed"}
    await eventually_async(
        lambda: (world.metrics.registry.get_sample_value("octavo_gateway_wakes_total", failed) or 0) >= 2
    )
    assert len(pool.queue) == 1
    call.cancel()
    task.cancel()
