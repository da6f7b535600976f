"""GET / of a gateway: the page's files, the models of a key with their load, and the flag that takes it away."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import msgspec
from tests.support.waiting import eventually_async

from octavo_common.page import FILES, PageState
from octavo_gateway.access.key_file import KeyFile
from octavo_gateway.app import load_poller
from octavo_gateway.app.run import replica_session
from octavo_gateway.discovery.endpoints import Deployment, Endpoint, table

from .test_background import reporting

A = {"Authorization": "Bearer alpha"}


async def state(world, **headers) -> PageState:
    async with world.client.get(world.url + "/page/state", headers=headers) as response:
        assert response.status == 200
        return msgspec.json.decode(await response.read(), type=PageState)


async def test_the_files_are_served_without_a_key_and_the_state_is_not(world, tmp_path):
    (tmp_path / "keys").write_text("alpha\n")
    await world.start(keys=KeyFile(tmp_path / "keys"))
    for file in FILES:
        async with world.client.get(world.url + file.path) as response:
            assert (response.status, await response.read()) == (200, file.read())
            assert response.headers["Content-Type"] == f"{file.media_type}; charset=utf-8"
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    async with world.client.get(world.url + "/page/state") as response:
        assert response.status == 401
    assert (await state(world, **A)).gateway


async def test_a_model_has_the_load_of_its_replicas(world):
    await world.start()
    admin = await world.pod(reporting(blocks_pinned=25, running=3, waiting=2, generation_tokens=70))
    pool = world.has(replace((await world.pod()).endpoint(), admin_url=admin.url))
    async with replica_session() as session:
        polling = asyncio.create_task(load_poller.poll(world.registry, session))
        await eventually_async(lambda: all(replica.report for replica in pool.replicas.values()))
        polling.cancel()
    [model] = (await state(world)).models
    [replica] = model.replicas
    assert (model.names, model.ready, model.held) == (["m", "alias"], True, 0)
    assert (replica.ready, replica.kv_pool, replica.running, replica.waiting) == (True, 0.25, 3, 2)
    assert replica.generated_tokens == 70
    text = msgspec.json.encode(await state(world)).decode()
    assert admin.url.rpartition(":")[2] not in text, "clients see no address of a replica"


async def test_a_model_without_a_replica_is_not_ready(world):
    await world.start()
    world.has()
    [model] = (await state(world)).models
    assert (model.ready, model.replicas) == (False, [])


async def test_a_key_sees_only_the_models_that_it_may_use(world, tmp_path):
    entries = [{"name": "one", "key": "alpha", "models": ["m1"]}, {"name": "all", "key": "beta"}]
    (tmp_path / "keys").write_text(json.dumps({"keys": entries}))
    await world.start(keys=KeyFile(tmp_path / "keys"))
    endpoints = (Endpoint("p", "http://x"),)
    world.registry.update(table(Deployment("ns", name, (name,), endpoints=endpoints) for name in ("m1", "m2")))
    seen = await state(world, **A), await state(world, Authorization="Bearer beta")
    assert [[name for model in each.models for name in model.names] for each in seen] == [["m1"], ["m1", "m2"]]


async def test_without_the_page_its_paths_are_unknown(world):
    await world.start()
    url = await world.serve(replace(world.api, page=False).app())
    for path in ("/", "/page/page.js", "/page/state"):
        async with world.client.get(url + path) as response:
            assert response.status == 404
