"""What clients see of adapters: models by their own names."""

from __future__ import annotations

import asyncio
import json
import random

import msgspec
import pytest
from aiohttp import web
from tests.support.waiting import eventually_async

from octavo_gateway.access.key_file import KeyFile
from octavo_gateway.discovery.endpoints import Deployment, table
from octavo_gateway.metrics import MOST_ADAPTERS, GatewayMetrics
from octavo_gateway.pool.registry import ModelRegistry, NamedModel
from octavo_gateway.queueing.hold_queue import Bounds
from octavo_protocol.adapters import AdapterReport
from octavo_protocol.load import LoadReport

KEYS = {"both": ["m", "sql"], "base": ["m"], "one": ["sql"], "pattern": ["s*"], "all": None}
NUMBERS = [field.name for field in msgspec.structs.fields(LoadReport) if field.type is int]


def serves(world, *pods, adapters=("sql", "legal"), hold=True):
    ends = tuple(pod.endpoint() for pod in pods)
    world.registry.update(table([Deployment("ns", "d", ("m", "alias"), hold, 30.0, 7, ends, adapters=adapters)]))
    return world.registry.find("m").pool


def report(pool, pod, **states):
    fixed = {"start_time": 1.0, "model": "m", "oldest_wait": 0.0, "ready": True, "draining": False}
    sizes = {"block_size": 16, "blocks_total": 4096, "max_running": 64, "max_batched_tokens": 512}
    adapters = [AdapterReport(name=name, state=state, failure="no file") for name, state in states.items()]
    replica = pool.replicas[pod.url]
    replica.asked(pool.clock())
    pool.take_report(replica, LoadReport(**(dict.fromkeys(NUMBERS, 0) | fixed | sizes), adapters=adapters), 0)


def keys(tmp_path, **limits):
    entries = [{"name": name, "key": name} | ({"models": found} if found else {}) for name, found in KEYS.items()]
    path = tmp_path / "keys"
    path.write_text(json.dumps({"keys": [entry | limits.get(entry["name"], {}) for entry in entries]}))
    return KeyFile(path)


def of(key):
    return {"Authorization": f"Bearer {key}"}


def sample(world, name, **labels):
    return world.metrics.registry.get_sample_value(name, labels)


async def costing(request, body):
    return web.json_response({"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 60}})


async def test_adapters_are_listed_with_their_parent(world):
    await world.start()
    serves(world)
    async with world.client.get(world.url + "/v1/models") as response:
        listed = (await response.json())["data"]
    assert [(model["id"], model["root"], model["parent"]) for model in listed] == [
        ("m", "m", None), ("alias", "m", None), ("legal", "legal", "m"), ("sql", "sql", "m"),
    ]  # fmt: skip
    async with world.client.get(world.url + "/v1/models/sql") as response:
        assert await response.json() == listed[3]
    version = {"anthropic-version": "2023-06-01"}
    async with world.client.get(world.url + "/v1/models", headers=version) as response:
        assert [model["id"] for model in (await response.json())["data"]] == ["m", "alias", "legal", "sql"]
    async with world.client.get(world.url + "/v1/models/sql", headers=version) as response:
        assert (await response.json())["display_name"] == "sql"


@pytest.mark.parametrize(
    ("key", "listed", "allowed"),
    [
        ("both", ["m", "alias", "sql"], {"m", "sql"}),
        ("base", ["m", "alias"], {"m"}),
        ("one", ["sql"], {"sql"}),
        ("pattern", ["sql"], {"sql"}),
        ("all", ["m", "alias", "legal", "sql"], {"m", "sql", "legal"}),
    ],
)
async def test_a_key_may_use_an_adapter_by_its_own_name_only(world, tmp_path, key, listed, allowed):
    await world.start(keys=keys(tmp_path))
    serves(world, await world.pod())
    async with world.client.get(world.url + "/v1/models", headers=of(key)) as response:
        assert [model["id"] for model in (await response.json())["data"]] == listed
    for name in ("m", "sql", "legal"):
        async with world.post({"model": name}, headers=of(key)) as response:
            assert response.status == (200 if name in allowed else 404)


async def test_limits_and_usage_count_by_the_name_in_the_request(world, tmp_path):
    await world.start(keys=keys(tmp_path, one={"tokensPerMinute": 90}))
    pod = await world.pod(costing)
    serves(world, pod)
    for name, key, status in (("sql", "one", 200), ("sql", "one", 429), ("sql", "both", 200), ("m", "both", 200)):
        async with world.post({"model": name}, headers=of(key)) as response:
            assert response.status == status
    path = "/v1/chat/completions"
    assert sample(world, "octavo_gateway_tokens_total", model="sql", route=path, kind="generation") == 120
    assert sample(world, "octavo_gateway_tokens_total", model="m", route=path, kind="generation") == 60
    assert sample(world, "octavo_gateway_requests_total", model="sql", route=path, code="429") == 1
    assert sample(world, "octavo_gateway_routed_requests_total", model="sql", reason="only") == 2
    assert sample(world, "octavo_gateway_key_tokens_total", key="one", kind="prompt") == 40


async def test_the_body_reaches_the_replica_with_the_adapters_name(world):
    await world.start()
    pods = [await world.pod() for _ in range(2)]
    pool = serves(world, *pods)
    report(pool, pods[0], sql="loaded")
    report(pool, pods[1])
    for path in ("/v1/chat/completions", "/tokenize", "/v1/messages/count_tokens"):
        async with world.post({"model": "sql", "messages": []}, path) as response:
            assert response.status == 200
    assert [json.loads(body)["model"] for _, body in pods[0].seen] == ["sql"] * 3
    assert pods[1].seen == []


async def test_an_unknown_adapter(world):
    await world.start()
    pod = await world.pod()
    pool = serves(world, pod, adapters=())
    for state, status in (({}, 404), ({"sql": "loaded"}, 200), ({}, 404)):
        report(pool, pod, **state)
        async with world.post({"model": "sql"}) as response:
            assert response.status == status
            answer = await response.json()
        assert (status == 200) == ("error" not in answer)
    assert answer["error"]["code"] == "model_not_found"


async def test_a_request_waits_until_a_replica_offers_its_adapter(world):
    await world.start()
    pod = await world.pod()
    pool = serves(world, pod)
    report(pool, pod)
    call = asyncio.create_task(world.post({"model": "sql"}).__aenter__())
    await eventually_async(lambda: len(pool.queue) == 1)
    pool.dispatch()
    async with world.post() as response:
        assert response.status == 200
    report(pool, pod, sql="cached")
    pool.dispatch()
    assert (await call).status == 200


async def test_the_longest_wait_for_an_adapter(world):
    await world.start(bounds=Bounds(seconds=0.1))
    pod = await world.pod()
    report(serves(world, pod), pod)
    async with world.post({"model": "sql"}) as response:
        assert response.status == 503
        message = (await response.json())["error"]["message"]
    assert message.startswith("The model 'sql' cannot answer now: no replica has the adapter ready within 0.1 s.")


async def test_a_failed_adapter(world):
    await world.start()
    pod = await world.pod()
    report(serves(world, pod), pod, sql="failed")
    async with world.post({"model": "sql"}) as response:
        assert response.status == 503
        error = (await response.json())["error"]
    assert (error["code"], error["message"]) == (
        "model_failed", "The model 'sql' is an adapter that cannot be used. Its operators have to act.",
    )  # fmt: skip
    async with world.post() as response:
        assert response.status == 200


async def test_without_a_name_the_request_is_for_the_only_model_of_the_key(world, tmp_path):
    await world.start(keys=keys(tmp_path))
    pod = await world.pod()
    pool = serves(world, pod)
    report(pool, pod, sql="loaded")
    for key, model in (("all", "m"), ("one", "sql")):
        async with world.post({"prompt": "x"}, "/tokenize", headers=of(key)) as response:
            assert response.status == 200
        assert sample(world, "octavo_gateway_requests_total", model=model, route="/tokenize", code="200") == 1


async def test_a_stored_response_of_an_adapter_is_found(world, tmp_path):
    stored = set()

    async def storing(request, body):
        wanted = request.path.split("/")[3] if request.path.count("/") > 2 else ""
        if wanted:
            return web.json_response({"id": wanted}, status=200 if wanted in stored else 404)
        earlier = json.loads(body).get("previous_response_id")
        assert earlier is None or earlier in stored
        stored.add(f"resp_{len(stored)}")
        return web.json_response({"id": f"resp_{len(stored) - 1}", "usage": None})

    await world.start(keys=keys(tmp_path))
    pods = [await world.pod(storing if n else costing) for n in range(2)]
    pool = serves(world, *pods)
    report(pool, pods[0], legal="loaded")
    report(pool, pods[1], sql="loaded")
    async with world.post({"model": "sql"}, "/v1/responses", headers=of("one")) as response:
        first = (await response.json())["id"]
    async with world.client.get(f"{world.url}/v1/responses/{first}", headers=of("one")) as response:
        assert response.status == 200
    body = {"model": "sql", "previous_response_id": first}
    async with world.post(body, "/v1/responses", headers=of("one")) as response:
        assert response.status == 200
    assert sample(world, "octavo_gateway_routed_requests_total", model="sql", reason="stored") == 1
    assert pods[0].seen == []


async def test_a_retry_goes_to_a_replica_with_the_adapter(world):
    async def drains(request, body):
        return web.json_response({}, status=503, headers={"X-Octavo-Draining": "1"})

    await world.start()
    pods = [await world.pod(drains), await world.pod(), await world.pod()]
    pool = serves(world, *pods)
    for pod, states in zip(pods, ({"sql": "loaded"}, {}, {"sql": "cached"}), strict=True):
        report(pool, pod, **states)
    async with world.post({"model": "sql"}) as response:
        assert response.status == 200
    assert [len(pod.seen) for pod in pods] == [1, 0, 1]
    assert sample(world, "octavo_gateway_retries_total", model="sql", reason="draining") == 1


async def test_metrics_count_replicas_by_the_state_of_an_adapter(world):
    await world.start()
    pods = [await world.pod() for _ in range(3)]
    pool = serves(world, *pods)
    for pod, state in zip(pods, ("loaded", "failed", "loaded"), strict=True):
        report(pool, pod, sql=state)
    name = "octavo_gateway_adapter_replicas"
    assert sample(world, name, model="m", adapter="sql", state="loaded") == 2
    assert sample(world, name, model="m", adapter="sql", state="failed") == 1
    assert b'octavo_gateway_broken_streams_total{model="sql"} 0.0' in world.metrics.exposition()


def test_adapters_beyond_a_number_share_their_series():
    registry = ModelRegistry(Bounds(), lambda: 0.0, random.Random(0).random)
    metrics = GatewayMetrics(registry)
    registry.update(table([Deployment("ns", "d", ("m",))]))
    pool = registry.find("m").pool
    labels = {metrics.model(NamedModel(pool, f"a{n}")) for n in range(MOST_ADAPTERS + 50)}
    assert len(labels) == MOST_ADAPTERS + 1
    assert "other" in labels
    assert metrics.model(NamedModel(pool)) == "m"
