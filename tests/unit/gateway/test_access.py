"""Keys with limits, as clients see them."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from tests.support.waiting import eventually_async

from octavo_gateway.access.key_file import KeyFile
from octavo_gateway.access.usage import TokenUsage

A = {"Authorization": "Bearer alpha"}
B = {"Authorization": "Bearer beta"}


@pytest.fixture
def keys(tmp_path):
    def make(**fields):
        path = tmp_path / "keys"
        entry = {"name": "team-a", "key": "alpha", **fields}
        path.write_text(json.dumps({"keys": [entry, {"name": "team-b", "key": "beta"}]}))
        return KeyFile(path)

    return make


def costing(prompt: int, output: int):
    async def behave(request, body):
        usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        return web.json_response({"choices": [], "usage": usage})

    return behave


def sample(world, name, **labels):
    return world.metrics.registry.get_sample_value(name, labels)


async def test_requests_per_minute(world, keys):
    await world.start(keys=keys(requestsPerMinute=2))
    pod = await world.pod()
    world.has(pod.endpoint())
    for left in ("1", "0"):
        async with world.post(headers=A) as response:
            assert response.status == 200
            assert response.headers["x-ratelimit-limit-requests"] == "2"
            assert response.headers["x-ratelimit-remaining-requests"] == left
    assert response.headers["x-ratelimit-reset-requests"] == "1m0s"
    async with world.post(headers=A) as response:
        assert response.status == 429
        assert response.headers["Retry-After"] == "30"
        assert response.headers["x-ratelimit-remaining-requests"] == "0"
        error = (await response.json())["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert error["message"] == "This API key's limit of 2 requests per minute is reached."
    async with world.post(headers=B) as response:
        assert response.status == 200
        assert not [name for name in response.headers if name.lower().startswith("x-ratelimit")]
    world.now += 30
    async with world.post(headers=A) as response:
        assert response.status == 200
    assert len(pod.seen) == 4
    assert sample(world, "octavo_gateway_limit_hits_total", key="team-a", limit="requests") == 1
    assert sample(world, "octavo_gateway_key_requests_total", key="team-a", code="429") == 1
    assert sample(world, "octavo_gateway_key_requests_total", key="team-b", code="200") == 1


async def test_the_answers_usage_counts(world, keys):
    await world.start(keys=keys(tokensPerMinute=600))
    pod = await world.pod(costing(40, 960))
    world.has(pod.endpoint())
    async with world.post(headers=A) as response:
        assert response.status == 200
    async with world.post(headers=A) as response:
        assert response.status == 429
        # 400 in debt, and the estimate of this one: ten a second.
        assert 40 <= int(response.headers["Retry-After"]) <= 44
        assert response.headers["x-ratelimit-remaining-tokens"] == "0"
    assert sample(world, "octavo_gateway_key_tokens_total", key="team-a", kind="generation") == 960
    assert sample(world, "octavo_gateway_key_tokens_total", key="team-a", kind="prompt") == 40


async def test_a_streams_events_count_when_it_tells_no_usage(world, keys, streams):
    await world.start(keys=keys(tokensPerMinute=600))
    pod = await world.pod(streams([b'data: {"n": 1}\n\n'] * 20))
    world.has(pod.endpoint())
    async with world.post({"model": "m", "stream": True}, headers=A) as response:
        await response.read()
        assert response.headers["x-ratelimit-limit-tokens"] == "600"
    assert sample(world, "octavo_gateway_key_tokens_total", key="team-a", kind="generation") == 20


async def test_what_a_replica_refuses_costs_no_tokens(world, keys):
    await world.start(keys=keys(tokensPerMinute=600))

    async def refuse(request, body):
        return web.json_response({"error": {"message": "no"}}, status=400)

    pod = await world.pod(refuse)
    world.has(pod.endpoint())
    for _ in range(60):
        async with world.post({"model": "m", "prompt": "a" * 1000}, headers=A) as response:
            assert response.status == 400


async def test_requests_at_a_time(world, keys):
    await world.start(keys=keys(maxConcurrent=1))
    gate = asyncio.Event()

    async def wait(request, body):
        await gate.wait()
        return web.json_response({})

    pod = await world.pod(wait)
    world.has(pod.endpoint())
    first = asyncio.create_task(world.post(headers=A).__aenter__())
    await eventually_async(lambda: len(pod.seen) == 1)
    async with world.post(headers=A) as response:
        assert response.status == 429
        assert response.headers["Retry-After"] == "1"
    gate.set()
    (await first).release()
    async with world.post(headers=A) as response:
        assert response.status == 200


async def test_a_client_that_leaves_gives_its_slot_back(world, keys):
    await world.start(keys=keys(maxConcurrent=1, tokensPerMinute=1000))
    pool = world.has()
    call = asyncio.create_task(world.post(headers=A).__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1)
    call.cancel()
    account = world.access.accounts.known["team-a"]
    await eventually_async(lambda: account.open == 0)
    assert account.slots.mine == 0
    assert account.tokens.level == 1000


async def test_models_that_a_key_may_not_use_are_not_there(world, keys):
    await world.start(keys=keys(models=["other*"]))
    pod = await world.pod()
    world.has(pod.endpoint())
    async with world.post(headers=A) as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"
    async with world.client.get(world.url + "/v1/models", headers=A) as response:
        assert (await response.json())["data"] == []
    async with world.client.get(world.url + "/v1/models/m", headers=A) as response:
        assert response.status == 404
    async with world.client.get(world.url + "/v1/models/m", headers=B) as response:
        assert response.status == 200
    assert not pod.seen


async def test_any_name_of_a_model_is_enough(world, keys):
    await world.start(keys=keys(models=["ns/*"]))
    pod = await world.pod()
    world.has(pod.endpoint())
    async with world.post({"model": "alias"}, headers=A) as response:
        assert response.status == 200


async def test_a_key_that_has_expired(world, keys):
    await world.start(keys=keys(expires="2020-01-01"))
    world.has()
    async with world.post(headers=A) as response:
        assert response.status == 401
        assert (await response.json())["error"]["code"] == "expired_api_key"


async def test_series_of_keys_are_bounded(world, monkeypatch, keys):
    monkeypatch.setattr("octavo_gateway.metrics.MOST_KEYS", 1)
    await world.start(keys=keys())
    pod = await world.pod()
    world.has(pod.endpoint())
    for headers in (A, B):
        (await world.post(headers=headers)).release()
    assert sample(world, "octavo_gateway_key_requests_total", key="team-a", code="200") == 1
    assert sample(world, "octavo_gateway_key_requests_total", key="other", code="200") == 1


@pytest.mark.parametrize(
    ("data", "prompt", "output"),
    [
        (b'data: {"usage":{"prompt_tokens":7,"total_tokens":10,"completion_tokens":3}}\n\ndata: [DONE]\n\n', 7, 3),
        (b'data: {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\n', 7, 3),
        (b'data: {"usage":null}\n\n', 5, 1),
        (b'data: {"text":"\\"usage\\":{\\"prompt_tokens\\":99,"}\n\n', 5, 1),
    ],
)
def test_usage_is_read_from_events(data, prompt, output):
    usage = TokenUsage(5, sent=True)
    usage.events(data)
    assert (usage.prompt, usage.output) == (prompt, output)


@pytest.mark.parametrize(
    ("asked", "sent"),
    [(None, "1"), (0, "0"), (2, "2"), (9, "3"), (-99, "-10"), ("high", "1"), (True, "1"), ([{}], "1")],
)
async def test_replicas_are_told_whose_request_it_is_and_its_priority(world, keys, asked, sent):
    await world.start(keys=keys(priority={"default": 1, "max": 3}))
    pod = await world.pod()
    world.has(pod.endpoint())
    forged = {**A, "X-Octavo-Tenant": "other", "X-Octavo-Priority": "10"}
    async with world.post({"model": "m", "priority": asked}, headers=forged) as response:
        assert response.status == 200
    async with world.post(headers=B) as response:
        assert response.status == 200
    (one, _), (other, _) = pod.seen
    assert one.headers.getall("X-Octavo-Priority") == [sent]
    assert one.headers["X-Octavo-Tenant"] not in {"other", "team-a", other.headers["X-Octavo-Tenant"]}


async def test_without_keys_replicas_are_told_of_no_tenant(world):
    await world.start()
    pod = await world.pod()
    world.has(pod.endpoint())
    async with world.post({"model": "m", "priority": 5}) as response:
        assert response.status == 200
    assert not {"X-Octavo-Tenant", "X-Octavo-Priority"} & set(pod.seen[0][0].headers)


async def test_a_number_without_bound_costs_no_slot(world, keys):
    await world.start(keys=keys(maxConcurrent=2))
    pod = await world.pod()
    world.has(pod.endpoint())
    for _ in range(3):
        body = {"model": "m", "messages": [], "max_tokens": 10**400, "n": 10**400}
        async with world.post(body, headers=A) as response:
            assert response.status == 200
    assert len(pod.seen) == 3


async def test_whatever_fails_inside_the_gateway_costs_no_slot(world, keys, monkeypatch):
    await world.start(keys=keys(maxConcurrent=2))
    pod = await world.pod()
    world.has(pod.endpoint())
    with monkeypatch.context() as broken:
        broken.setattr("octavo_gateway.http.forwarding.most_output", lambda head, work: 1 / 0)
        for _ in range(2):
            async with world.post(headers=A) as response:
                assert response.status == 500
    async with world.post(headers=A) as response:
        assert response.status == 200


async def test_who_leaves_before_a_whole_answer_pays_for_what_was_generated(world, keys):
    await world.start(keys=keys(tokensPerMinute=1000))

    async def never(request, body):
        await asyncio.Event().wait()

    pod = await world.pod(never)
    pool = world.has(pod.endpoint())
    call = asyncio.create_task(world.post(headers=A).__aenter__())
    await eventually_async(lambda: len(pod.seen) == 1)
    (replica,) = pool.replicas.values()
    (request,) = replica.load.unseen
    replica.load.progress(request, 50)
    account = world.access.accounts.known["team-a"]
    before = account.tokens.level
    call.cancel()
    await eventually_async(lambda: account.open == 0)
    assert account.tokens.level == before - 50
    assert sample(world, "octavo_gateway_key_tokens_total", key="team-a", kind="generation") == 50
