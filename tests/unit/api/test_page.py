"""GET / of a server: the page's files, the numbers that it shows, and the flag that takes it away."""

from __future__ import annotations

from starlette.testclient import TestClient

from octavo_common.page import FILES
from octavo_inference.server.auth import Keys
from octavo_inference.server.public import public_app


async def test_the_files_are_served_without_a_key_and_the_state_is_not(serve, tmp_path):
    (tmp_path / "keys").write_text("secret\n")
    async with serve(keys=Keys(str(tmp_path / "keys"), "--api-key-file")) as server:
        for file in FILES:
            answer = await server.api.get(file.path)
            assert (answer.status_code, answer.content) == (200, file.read())
            assert answer.headers["content-type"] == f"{file.media_type}; charset=utf-8"
            assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert (await server.api.get("/page/state")).status_code == 401
        state = await server.api.get("/page/state?model=m", headers={"Authorization": "Bearer secret"})
        assert state.status_code == 200


async def test_the_numbers_are_those_of_the_report(serve):
    async with serve() as server:
        await server.api.post("/v1/completions", json={"model": "m", "prompt": "a b", "max_tokens": 3})
        report = server.service.report()
        state = (await server.api.get("/page/state")).json()
    assert (state["ready"], state["generates"], state["gateway"], state["version"]) == (True, True, False, "1.2.3")
    assert state["settings"]["max_model_len"] == "512"
    load = {"kv_pool": round(report.kv_occupancy, 2), "running": report.running, "waiting": report.waiting}
    assert state["replicas"] == [{"ready": True, **load}]


async def test_while_the_model_loads_there_is_no_load(serve):
    async with serve(ready=False) as server:
        state = (await server.api.get("/page/state")).json()
    assert (state["ready"], state["replicas"], state["settings"]) == (False, [], {})


async def test_an_embedding_model_has_no_chat(serve):
    async with serve(task="embed") as server:
        assert (await server.api.get("/page/state")).json()["generates"] is False


async def test_without_the_page_its_paths_are_unknown(serve):
    async with serve() as server:
        client = TestClient(public_app(server.service, None, "1.2.3", page=False))
        assert [client.get(path).status_code for path in ("/", "/page/page.js", "/page/state")] == [404] * 3
