"""GET / of a gateway: the page's files, a model of a key with its load, and the flag that takes it away."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from octavo_common.page import FILES
from octavo_gateway.access.key_file import KeyFile
from octavo_gateway.discovery.endpoints import Deployment, Endpoint, table
from octavo_gateway.pool.replica import REPORT_SECONDS

from .test_background import report

A, B = {"Authorization": "Bearer alpha"}, {"Authorization": "Bearer beta"}
PATHS = [*(file.path for file in FILES), "/page/state"]


async def state(world, model="m", **headers):
    async with world.client.get(f"{world.url}/page/state?model={model}", headers=headers) as response:
        return response.status, await response.json()


def reported(pool, seconds_ago=0.0, **fields):
    """Give all replicas a report."""
    for replica in pool.replicas.values():
        replica.report, replica.reported_at = report(**fields), time.time() - seconds_ago


@pytest.fixture
def keys(tmp_path):
    entries = [{"name": "one", "key": "alpha", "models": ["m1"]}, {"name": "all", "key": "beta"}]
    (tmp_path / "keys").write_text(json.dumps({"keys": entries}))
    return KeyFile(tmp_path / "keys")


async def test_the_files_are_served_without_a_key_and_the_state_is_not(world, keys):
    await world.start(keys=keys)
    for file in FILES:
        async with world.client.get(world.url + file.path) as response:
            assert (response.status, await response.read()) == (200, file.read())
            assert response.headers["Content-Type"] == f"{file.media_type}; charset=utf-8"
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert (await state(world))[0] == 401


async def test_a_model_has_the_load_of_its_replicas(world):
    await world.start()
    pool = world.has(Endpoint("p", "http://10.1.2.3:8000", "http://10.1.2.3:9000"))
    reported(pool, 2.0, blocks_pinned=25, running=3, waiting=2, generation_tokens=70, prompt_tokens=40)
    await state(world)
    reported(pool, 1.0, generation_tokens=92, prompt_tokens=60, prefix_hit_tokens=5, running=1)
    status, found = await state(world)
    assert status == 200
    assert found["replicas"] == [{"ready": True, "kv_pool": 0.0, "running": 1, "waiting": 0}]
    assert (found["ready"], found["held"], found["tokens_per_second"], found["prefix_hits"]) == (True, 0, 22, 0.25)
    assert "10.1.2.3" not in json.dumps(found), "clients see no address of a replica"
    assert not {"generation_tokens", "prompt_tokens"} & found.keys(), "nor what single requests of others cost"


async def test_a_replica_without_a_recent_report_has_no_load(world):
    await world.start()
    pool = world.has(Endpoint("p", "http://x"))
    nothing = {"ready": True, "kv_pool": None, "running": None, "waiting": None}
    assert (await state(world))[1]["replicas"] == [nothing]
    reported(pool, REPORT_SECONDS + 1)
    assert (await state(world))[1]["replicas"] == [nothing]
    reported(pool, ready=False)
    assert (await state(world))[1]["ready"] is False


async def test_a_model_without_a_replica_is_not_ready(world):
    await world.start()
    world.has()
    found = (await state(world))[1]
    assert (found["ready"], found["replicas"], found["tokens_per_second"]) == (False, [], None)


async def test_a_key_sees_only_the_models_that_it_may_use(world, keys):
    await world.start(keys=keys)
    endpoints = (Endpoint("p", "http://x"),)
    world.registry.update(table(Deployment("ns", name, (name,), endpoints=endpoints) for name in ("m1", "m2")))
    found = [(await state(world, model, **key))[0] for key in (A, B) for model in ("m1", "m2", "m3")]
    assert found == [200, 404, 404, 200, 200, 404]


async def test_without_the_page_its_paths_are_unknown(world, keys):
    await world.start(keys=keys)
    url = await world.serve(replace(world.api, page=False).app())
    for path in PATHS:
        for headers, status in (({}, 401), (B, 404)):
            async with world.client.get(url + path, headers=headers) as response:
                assert response.status == status, path
