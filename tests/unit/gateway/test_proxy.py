"""What a client sees through the gateway, against pods on loopback."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from aiohttp import web
from tests.support.ports import free_port
from tests.support.waiting import eventually_async

from octavo_gateway.discovery.endpoints import Deployment, Endpoint, ModelTable, table
from octavo_gateway.http.call import Call
from octavo_gateway.pool.replica_selector import ReplicaSelector
from octavo_gateway.queueing.hold_queue import Bounds

EVENTS = [b'data: {"n": %d}\n\n' % n for n in range(3)] + [b"data: [DONE]\n\n"]
STREAM = {"model": "m", "stream": True, "messages": []}


def dead() -> Endpoint:
    url = f"http://127.0.0.1:{free_port()}"
    return Endpoint(url, url)


def draining(request, body):
    async def refuse():
        return web.json_response(
            {"error": {"message": "draining"}}, status=503, headers={"X-Octavo-Draining": "1", "Retry-After": "1"}
        )

    return refuse()


def answering(status, **headers):
    async def behave(request, body):
        return web.json_response({"error": {"message": "no"}}, status=status, headers=headers)

    return behave


async def error_of(response):
    error = (await response.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_a_timeout_that_runs_out_while_it_is_sent_stays_well_formed(world, monkeypatch):
    await world.start()
    pod = await world.pod()
    world.has(pod.endpoint())
    left = iter([0.0011, 0.0004])
    monkeypatch.setattr(Call, "left", lambda call: next(left))
    async with world.post(headers={"X-Request-Timeout": "5"}) as response:
        assert response.status == 200
    assert pod.seen[0][0].headers["X-Request-Timeout"] == "0.001"


async def test_an_answer_passes_unchanged(world):
    await world.start()
    pod = await world.pod()
    world.has(pod.endpoint())
    async with world.post() as response:
        assert response.status == 200
        assert await response.json() == {"object": "chat.completion"}
    request, body = pod.seen[0]
    assert request.path == "/v1/chat/completions"
    assert json.loads(body) == {"model": "m", "messages": []}


@pytest.mark.parametrize(
    "chunks",
    [EVENTS, [b"".join(EVENTS)], [b"data: a", b"\n", b"\ndata: b\n\n", b"data: [DONE]\n\n"], [b"no end"]],
    ids=["events", "one", "torn", "unfinished"],
)
async def test_a_stream_passes_byte_for_byte(world, streams, chunks):
    await world.start()
    pod = await world.pod(streams(chunks))
    world.has(pod.endpoint())
    async with world.post(STREAM) as response:
        assert response.content_type == "text/event-stream"
        assert await response.read() == b"".join(chunks)


async def test_events_arrive_while_the_stream_goes_on(world, streams):
    await world.start()
    gate = asyncio.Event()
    pod = await world.pod(streams(EVENTS, gate=gate))
    world.has(pod.endpoint())
    async with world.post(STREAM) as response:
        assert await response.content.readuntil(b"2}\n\n") == b"".join(EVENTS[:3])
        gate.set()
        assert await response.read() == EVENTS[3]


async def test_a_client_that_leaves_ends_the_request_at_the_pod(world, streams):
    await world.start()
    pod = await world.pod(streams(EVENTS, gate=asyncio.Event()))
    pool = world.has(pod.endpoint())
    response = await world.post(STREAM)
    await response.content.readuntil(b"\n\n")
    response.close()
    async with asyncio.timeout(30):
        await pod.cancelled.wait()
    await eventually_async(lambda: pool.in_flight == 0)


async def test_a_client_that_leaves_before_the_answer_ends_the_request_at_the_pod(world):
    await world.start()

    async def never(request, body):
        await asyncio.Event().wait()

    pod = await world.pod(never)
    pool = world.has(pod.endpoint())
    call = asyncio.create_task(world.post().__aenter__())
    await eventually_async(lambda: bool(pod.seen))
    call.cancel()
    async with asyncio.timeout(30):
        await pod.cancelled.wait()
    await eventually_async(lambda: pool.in_flight == 0 and world.status.requests == 0)


async def test_headers_that_stay_behind(world):
    await world.start()
    pod = await world.pod()
    world.has(pod.endpoint())
    sent = {
        "Authorization": "Bearer secret",
        "X-Api-Key": "secret",
        "Cookie": "a=b",
        "X-Octavo-Tenant": "evil",
        "X-Forwarded-For": "1.2.3.4",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "1",
        "X-Stays": "1",
        "X-Request-Id": "abc-1",
    }
    async with world.post(headers=sent) as response:
        assert response.headers["X-Request-Id"] == "abc-1"
        assert "X-Octavo-Secret" not in response.headers
    got = pod.seen[0][0].headers
    assert (got["X-Stays"], got["X-Request-Id"]) == ("1", "abc-1")
    assert not set(sent) - {"Connection", "X-Stays", "X-Request-Id"} & set(got)
    assert "secret" not in str(got)


async def test_a_harmful_request_id_is_replaced(world):
    await world.start()
    async with world.post(headers={"X-Request-Id": "a b<script>"}) as response:
        assert response.headers["X-Request-Id"].isalnum()


@pytest.mark.parametrize("kind", ["dead", "draining"])
async def test_another_pod_is_tried_once_before_the_first_byte(world, kind):
    await world.start()
    good = await world.pod()
    bad = dead() if kind == "dead" else (await world.pod(draining)).endpoint()
    world.has(bad, good.endpoint())
    for _ in range(8):
        async with world.post() as response:
            assert response.status == 200
    assert len(good.seen) == 8


async def test_a_pod_that_dies_before_its_first_byte_is_replaced(world):
    await world.start()

    async def die(request, body):
        request.transport.abort()

    bad, good = await world.pod(die), await world.pod()
    world.has(bad.endpoint(), good.endpoint())
    for _ in range(4):
        async with world.post() as response:
            assert response.status == 200
    assert len(bad.seen) <= 1


async def test_two_pods_are_the_most(world):
    await world.start()
    world.has(dead(), dead(), dead(), dead(), hold=False)
    async with world.post() as response:
        assert response.status == 503
        assert 1 <= int(response.headers["Retry-After"]) <= 120
        assert (await error_of(response))["code"] == "model_unavailable"
    assert (
        world.metrics.registry.get_sample_value("octavo_gateway_retries_total", {"model": "m", "reason": "connect"})
        == 1
    )


@pytest.mark.parametrize("status", [400, 429, 500, 503, 504])
async def test_a_pods_own_error_is_the_answer(world, status):
    await world.start()
    pods = [await world.pod(answering(status, **{"Retry-After": "7"})) for _ in range(2)]
    world.has(*(pod.endpoint() for pod in pods))
    async with world.post() as response:
        assert response.status == status
        assert response.headers["Retry-After"] == "7"
    assert sum(len(pod.seen) for pod in pods) == 1


async def test_a_pod_that_comes_back_is_used_again(world):
    await world.start()
    pod = await world.pod(draining)
    pool = world.has(pod.endpoint(), hold=False)
    async with world.post() as response:
        assert response.status == 503
    assert not pool.available()
    pod.behave = answering(200)
    (replica,) = pool.replicas.values()
    assert not replica.accepts(pool.clock() + 4)
    assert replica.accepts(pool.clock() + 6)
    replica.avoid_until = 0.0
    async with world.post() as response:
        assert response.status == 200
    assert replica.failures == 0


async def test_retries_have_a_budget(world):
    await world.start()
    good = await world.pod()
    pool = world.has(dead(), good.endpoint())
    statuses = []
    for _ in range(30):
        for replica in pool.replicas.values():
            replica.end_backoff()
        async with world.post() as response:
            statuses.append(response.status)
    assert statuses[:8] == [200] * 8
    retries = world.metrics.registry.get_sample_value(
        "octavo_gateway_retries_total", {"model": "m", "reason": "connect"}
    )
    assert retries <= 10 + 0.2 * 30


async def test_pods_that_drain_cost_no_retry(world):
    await world.start()
    leaving = [await world.pod(draining) for _ in range(3)]
    good = await world.pod()
    pool = world.has(*(pod.endpoint() for pod in leaving), good.endpoint())
    for _ in range(12):
        for replica in pool.replicas.values():
            replica.end_backoff()
        async with world.post() as response:
            assert response.status == 200
    assert pool.retries.spend()


async def test_a_retry_does_not_return_to_a_pod_that_drains_while_another_one_accepts(world, monkeypatch):
    await world.start()
    leaving = [await world.pod(draining) for _ in range(2)]
    good = await world.pod()
    pool = world.has(*(pod.endpoint() for pod in leaving), good.endpoint())
    # On a busy machine a request may take longer than the back-off of the pods that refused it.
    monkeypatch.setattr(ReplicaSelector, "accepting", lambda _self, _deployment, replicas, *_: iter(list(replicas)))
    monkeypatch.setattr(pool.retries, "spend", lambda: False)
    for _ in range(20):
        async with world.post() as response:
            assert response.status == 200
    assert all(len(pod.seen) <= 20 for pod in leaving)


async def test_a_pod_that_only_ever_drains_ends_the_request(world):
    await world.start()
    pod = await world.pod(draining)
    pool = world.has(pod.endpoint())
    (replica,) = pool.replicas.values()
    call = asyncio.create_task(world.post().__aenter__())

    def over() -> bool:
        replica.end_backoff()
        pool.dispatch()
        return call.done()

    await eventually_async(over)
    async with await call as response:
        assert response.status == 503
    assert len(pod.seen) == 3


async def test_a_stream_that_breaks_ends_with_an_error_event(world, streams):
    await world.start()
    pod = await world.pod(streams([*EVENTS[:2], b'data: {"half'], cut=True))
    other = await world.pod()
    world.has(pod.endpoint())
    async with world.post(STREAM) as response:
        text = await response.read()
    events = text.split(b"\n\n")
    assert events[:2] == [b'data: {"n": 0}', b'data: {"n": 1}']
    error = json.loads(events[2].removeprefix(b"data: "))["error"]
    assert error["code"] == "replica_lost"
    assert events[3:] == [b""]
    assert b"[DONE]" not in text
    assert not other.seen


async def test_a_plain_answer_that_breaks_is_a_502(world):
    await world.start()

    async def half(request, body):
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'{"half')
        request.transport.close()
        return response

    pod = await world.pod(half)
    world.has(pod.endpoint())
    async with world.post() as response:
        assert response.status == 502
        assert (await error_of(response))["code"] == "replica_lost"
    assert len(pod.seen) == 1


# Holding.


async def test_a_held_request_is_answered_when_a_pod_comes(world):
    await world.start()
    pool = world.has()
    call = asyncio.create_task(world.post().__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1)
    async with world.client.get(world.admin_url + "/v1/octavo/load") as response:
        (model,) = (await response.json())["models"]
    assert (model["namespace"], model["name"], model["held"], model["arrivals"]) == ("ns", "d", 1, 1)
    assert model["held_prompt_tokens"] > 0
    pod = await world.pod()
    world.has(pod.endpoint())
    response = await call
    assert response.status == 200
    response.release()
    assert len(pool.queue) == 0


async def test_a_held_stream_is_kept_alive_and_then_streams(world, streams):
    await world.start(grace=0.05, keep_alive=0.05)
    pool = world.has()
    async with world.post(STREAM) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        assert len(pool.queue) == 1
        pod = await world.pod(streams(EVENTS))
        world.has(pod.endpoint())
        rest = await response.read()
    assert rest.replace(b": keep-alive\n\n", b"") == b"".join(EVENTS)


async def test_a_short_wait_keeps_the_status_code(world, streams):
    await world.start(grace=5)
    pool = world.has()
    call = asyncio.create_task(world.post(STREAM).__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1)
    pod = await world.pod(answering(400))
    world.has(pod.endpoint())
    response = await call
    assert response.status == 400
    response.release()


async def test_a_refusal_after_keep_alives_is_an_error_event(world):
    await world.start(grace=0.01, keep_alive=5)
    world.has()
    async with world.post(STREAM) as response:
        await response.content.readuntil(b"\n\n")
        pod = await world.pod(answering(400))
        world.has(pod.endpoint())
        assert await response.read() == b'data: {"error": {"message": "no"}}\n\n'


async def test_holding_ends_with_503_and_retry_after(world):
    await world.start(bounds=Bounds(seconds=0.05))
    pool = world.has(cold_start=500)
    async with world.post() as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "120"
        assert (await error_of(response))["code"] == "model_unavailable"
    assert len(pool.queue) == 0


async def test_the_queue_is_bounded_by_count_and_bytes(world):
    await world.start(bounds=Bounds(requests=1))
    pool = world.has(cold_start=10)
    call = asyncio.create_task(world.post().__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1)
    async with world.post() as response:
        assert response.status == 503
        assert 1 <= int(response.headers["Retry-After"]) <= 10
    call.cancel()
    await eventually_async(lambda: len(pool.queue) == 0)


async def test_a_client_that_leaves_is_no_longer_held(world):
    await world.start()
    pool = world.has()
    call = asyncio.create_task(world.post().__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1)
    call.cancel()
    await eventually_async(lambda: len(pool.queue) == 0)
    assert pool.queue.size == pool.queue.tokens == 0


async def test_without_hold_the_answer_is_at_once(world):
    await world.start()
    world.has(hold=False)
    async with world.post() as response:
        assert response.status == 503


async def test_a_model_that_is_removed_frees_those_who_wait(world):
    await world.start()
    pool = world.has()
    call = asyncio.create_task(world.post().__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1)
    world.has(models=("other",))
    world.registry.update(ModelTable())
    response = await call
    assert response.status == 503
    assert (await error_of(response))["code"] == "model_removed"


async def test_a_model_that_is_suspended_frees_those_who_wait(world):
    await world.start()
    pool = world.has()
    call = asyncio.create_task(world.post().__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1)
    world.has(hold=False, suspended=True)
    response = await call
    assert response.status == 503
    assert (await error_of(response))["code"] == "model_suspended"


async def test_a_suspended_model_says_so_and_names_no_time(world):
    await world.start()
    world.has(hold=False, suspended=True)
    async with world.post() as response:
        assert response.status == 503
        assert "Retry-After" not in response.headers
        assert await error_of(response) == {
            "message": "The model 'm' is suspended.",
            "type": "server_error",
            "param": None,
            "code": "model_suspended",
        }


async def test_a_model_that_cannot_start_says_so_to_all_who_wait_and_to_who_comes(world):
    await world.start(grace=0.01, keep_alive=5)
    pool = world.has()
    calls = [asyncio.create_task(world.post().__aenter__()) for _ in range(3)]
    stream = await world.post(STREAM)
    await eventually_async(lambda: len(pool.queue) == 4)
    world.has(stuck="ModelNotFound")
    for response in [*await asyncio.gather(*calls), await world.post()]:
        assert response.status == 503
        assert response.headers["x-should-retry"] == "false"
        assert "Retry-After" not in response.headers
        error = await error_of(response)
        assert (error["code"], "ModelNotFound" in error["message"]) == ("model_failed", True)
    assert b"model_failed" in await stream.read()
    # One that serves goes on, and when the reason is gone requests wait again.
    pod = await world.pod()
    world.has(pod.endpoint(), stuck="CrashLoop")
    async with world.post() as response:
        assert response.status == 200
    world.has()
    call = asyncio.create_task(world.post().__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1)
    call.cancel()


async def test_a_rollout_of_the_only_pod_holds_and_drops_nothing(world):
    await world.start()
    old = await world.pod(draining)
    pool = world.has(old.endpoint())
    call = asyncio.create_task(world.post().__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1)
    new = await world.pod()
    world.has(new.endpoint())
    response = await call
    assert response.status == 200
    response.release()
    assert (len(old.seen), len(new.seen)) == (1, 1)


async def test_releases_are_paced(world):
    """A pod without a report gets a few held requests, not all of them; the rest follow as it answers."""
    await world.start()
    gate = asyncio.Event()

    async def wait(request, body):
        await gate.wait()
        return web.json_response({})

    pod = await world.pod(wait)
    pool = world.has()
    calls = [asyncio.create_task(world.post().__aenter__()) for _ in range(10)]
    await eventually_async(lambda: len(pool.queue) == 10)
    world.has(replace(pod.endpoint(), admin_url="http://127.0.0.1:1"))
    await eventually_async(lambda: len(pod.seen) == 4)
    assert len(pool.queue) == 6
    gate.set()
    for response in await asyncio.gather(*calls):
        assert response.status == 200
        response.release()


# Deadlines.


async def test_a_held_request_whose_time_is_up_never_reaches_a_pod(world):
    await world.start()
    pool = world.has()
    async with world.post(headers={"X-Request-Timeout": "0.05"}) as response:
        assert response.status == 504
        error = await error_of(response)
    assert (error["code"], error["param"]) == ("deadline_exceeded", "X-Request-Timeout")
    assert len(pool.queue) == 0
    pod = await world.pod()
    world.has(pod.endpoint())
    async with world.post() as response:
        assert response.status == 200
    assert len(pod.seen) == 1


async def test_a_held_stream_whose_time_is_up_ends_with_an_error_event(world):
    await world.start(grace=0.01, keep_alive=0.01)
    world.has()
    async with world.post(STREAM, headers={"X-Request-Timeout": "0.2"}) as response:
        events = await response.read()
    assert events.startswith(b": keep-alive\n\n")
    assert b"deadline_exceeded" in events
    assert b"[DONE]" not in events


async def test_the_pod_is_told_the_time_that_is_left(world):
    await world.start()
    pool = world.has()
    call = asyncio.create_task(world.post(headers={"X-Request-Timeout": "100"}).__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1 and pool.queue.oldest(pool.clock()) > 0.05)
    pod = await world.pod()
    world.has(pod.endpoint())
    (await call).release()
    assert 10 < float(pod.seen[0][0].headers["X-Request-Timeout"]) < 99.96


@pytest.mark.parametrize("given", ["soon", "-1", "0", "1e3", "nan"])
async def test_a_time_that_is_none_is_left_to_the_pod(world, given):
    await world.start()
    pod = await world.pod()
    world.has(pod.endpoint())
    async with world.post(headers={"X-Request-Timeout": given}) as response:
        assert response.status == 200
    assert pod.seen[0][0].headers["X-Request-Timeout"] == given


async def test_a_request_that_gives_way_is_told_so(world):
    await world.start(bounds=Bounds(requests=1))
    pool = world.has()
    low = asyncio.create_task(world.post({"model": "m", "priority": 0}).__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1)
    high = asyncio.create_task(world.post({"model": "m", "priority": 3}).__aenter__())
    response = await low
    assert response.status == 503
    assert "Retry-After" in response.headers
    assert (await error_of(response))["code"] == "model_unavailable"
    assert pool.queue.by_priority() == {3: 1}
    text = world.metrics.exposition().decode()
    assert 'octavo_gateway_held_by_priority{model="m",priority="3"} 1.0' in text
    high.cancel()
    await eventually_async(lambda: len(pool.queue) == 0)


async def test_a_models_retries_are_its_own(world):
    await world.start()
    good = await world.pod()
    bad = Deployment("ns", "bad", ("bad",), endpoints=(dead(), dead()))
    fine = Deployment("ns", "fine", ("fine",), endpoints=(dead(), good.endpoint()))
    world.registry.update(table([bad, fine]))

    async def ask(model):
        for _, replica in world.registry.replicas():
            replica.end_backoff()
        async with world.post({"model": model}) as response:
            return response.status

    assert {await ask("bad") for _ in range(40)} == {503}
    assert not world.registry.find("bad").pool.retries.spend()
    assert {await ask("fine") for _ in range(8)} == {200}


async def test_who_waits_for_an_answer_is_not_tried_elsewhere(world):
    """Slow is not gone: the second replica never hears of a request that the first one has."""
    await world.start()
    gate = asyncio.Event()

    async def slow(request, body):
        await gate.wait()
        return web.json_response({})

    pods = [await world.pod(slow) for _ in range(2)]
    world.has(*(pod.endpoint() for pod in pods))
    call = asyncio.create_task(world.post(headers={"X-Request-Timeout": "0.05"}).__aenter__())
    await eventually_async(lambda: sum(len(pod.seen) for pod in pods) == 1)
    pool = world.registry.find("m").pool
    begun = pool.clock()
    await eventually_async(lambda: pool.clock() - begun > 0.2)
    gate.set()
    (await call).release()
    assert sum(len(pod.seen) for pod in pods) == 1


async def test_what_replicas_refuse_asks_for_no_more_of_them(world):
    await world.start()
    pod = await world.pod(answering(400))
    pool = world.has(pod.endpoint())
    async with world.post() as response:
        assert response.status == 400
    assert (pool.counters.arrivals, pool.counters.arrival_tokens) == (0, 0)
    assert pool.counters.last_arrival > 0
    for status in (429, 500, 200):
        pod.behave = answering(status)
        async with world.post() as response:
            assert response.status == status
    assert pool.counters.arrivals == 3
    world.has(dead(), hold=False)
    async with world.post() as response:
        assert response.status == 503
    assert pool.counters.arrivals == 4


async def test_a_held_request_counts_at_once_and_once(world):
    await world.start()
    pod = await world.pod(answering(400))
    pool = world.has()
    call = asyncio.create_task(world.post().__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1)
    assert pool.counters.arrivals == 1
    world.has(pod.endpoint())
    assert (await call).status == 400
    assert pool.counters.arrivals == 1


def answering_after(done):
    """A pod whose answer waits for `done`."""

    async def behave(request, body):
        await done.wait()
        return web.json_response({})

    return behave


async def test_a_long_answer_counts_while_it_is_computed(world):
    await world.start()
    done = asyncio.Event()
    pod = await world.pod(answering_after(done))
    pool = world.has(pod.endpoint())
    call = asyncio.create_task(world.post().__aenter__())
    await eventually_async(lambda: pool.counters.arrivals == 1)
    assert not call.done()
    done.set()
    assert (await call).status == 200
    assert pool.counters.arrivals == 1


async def test_whether_an_answer_is_seen_growing(world):
    await world.start()
    done = asyncio.Event()
    pod = await world.pod(answering_after(done))
    (replica,) = world.has(pod.endpoint()).replicas.values()
    for body, unseen in ((None, 1), (STREAM, 0)):
        call = asyncio.create_task(world.post(body).__aenter__())
        await eventually_async(lambda: len(pod.seen) == 1)
        assert len(replica.load.unseen) == unseen
        done.set()
        assert (await call).status == 200
        assert not replica.load.unseen
        done.clear()
        pod.seen.clear()
