"""Adapters by request: loads and unloads of one name take turns, and each has the chat template of its folder."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.support.waiting import eventually_async
from tests.unit.api.conftest import Serve, Server

from octavo_inference.common.errors import UnreadableError
from octavo_inference.config.engine import EngineSettings
from octavo_inference.core.adapters import EngineAdapter
from octavo_inference.model_loader import TextModel
from octavo_inference.server import adapters
from octavo_inference.server.adapters import ServedAdapter
from octavo_inference.server.errors import ApiError
from octavo_inference.server.model_text import ServedText, served_text
from octavo_inference.tokenizer.assets import TokenizerAssets
from octavo_protocol.adapters import MAX_ADAPTERS, ListedAdapter


@pytest.fixture
async def server(serve: Serve, tmp_path: Path) -> AsyncIterator[Server]:
    for name in ("first", "second", "bad"):
        (tmp_path / name).mkdir()
    async with serve(listen=True) as running:
        running.service.adapters.max_loaded = 2
        running.service.adapter_root = tmp_path
        yield running


def load(server: Server, path: str, name: str = "sql", **fields: object) -> asyncio.Task[httpx.Response]:
    body = {"lora_name": name, "lora_path": path} | fields
    return asyncio.create_task(server.admin.post("/v1/load_lora_adapter", json=body))


def unload(server: Server) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(server.admin.post("/v1/unload_lora_adapter", json={"lora_name": "sql"}))


async def offered(server: Server, *paths: str) -> None:
    """Wait until the engine reads these, and no others."""
    await eventually_async(lambda: [Path(path).name for path in server.engine.adapters.offered] == list(paths))


async def release(server: Server) -> None:
    server.engine.adapters.release()
    server.service.router.reset_cache()  # the engine's next step


def served(server: Server) -> ServedAdapter:
    found = server.service.adapters.find("sql")
    assert found is not None
    return found


async def second_waits(server: Server) -> None:
    """Wait until another request waits for its turn of the name."""
    await eventually_async(lambda: server.service.adapters.turn("sql")._waiters)


async def test_a_second_load_of_a_name_waits_and_is_refused(server: Server) -> None:
    server.engine.adapters.hold = True
    first = load(server, "first")
    await offered(server, "first")
    second = load(server, "second")
    await second_waits(server)
    await release(server)
    assert (await first).status_code == 200
    refused = await second
    assert refused.status_code == 400
    assert "the adapter 'sql' is loaded already; unload it first" in refused.json()["error"]["message"]
    await offered(server, "first")


async def test_a_second_load_goes_on_where_the_first_one_failed(server: Server) -> None:
    server.engine.adapters.hold = True
    first = load(server, "bad")
    await offered(server, "bad")
    second = load(server, "second")
    await second_waits(server)
    await release(server)
    assert (await first).json()["error"]["message"] == "lora_path: it is bad."
    assert (await second).status_code == 200
    assert served(server).path.endswith("second")


async def test_the_later_of_two_in_place_wins(server: Server) -> None:
    server.engine.adapters.hold = True
    first = load(server, "second", load_inplace=True)
    await offered(server, "second")
    second = load(server, "first", load_inplace=True)
    await second_waits(server)
    await release(server)
    assert [(await each).status_code for each in (first, second)] == [200, 200]
    assert served(server).path.endswith("first")
    assert len(server.service.adapters.all) == 1


async def test_an_unload_waits_for_the_load_before_it(server: Server) -> None:
    server.engine.adapters.hold = True
    loading = load(server, "first")
    await offered(server, "first")
    unloading = unload(server)
    await second_waits(server)
    await release(server)
    assert [(await each).status_code for each in (loading, unloading)] == [200, 200]
    assert server.service.adapters.find("sql") is None


async def test_a_client_that_leaves_gives_its_turn_to_the_next(server: Server) -> None:
    server.engine.adapters.hold = True
    first = load(server, "first")
    await offered(server, "first")
    second = load(server, "second")
    await second_waits(server)
    first.cancel()
    await offered(server, "first", "second")
    await release(server)
    assert (await second).status_code == 200
    assert [each.path.rsplit("/", 1)[-1] for each in server.service.adapters.all] == ["second"]


async def test_the_list_wins_over_a_load_that_runs(server: Server) -> None:
    server.engine.adapters.hold = True
    loading = load(server, "first")
    await offered(server, "first")
    server.service.adapters.follow([ListedAdapter(name="sql", path="listed")])
    await offered(server, "first", "listed")
    await release(server)
    refused = await loading
    assert refused.status_code == 400
    assert "--adapters-file has got an adapter 'sql' meanwhile" in refused.json()["error"]["message"]
    assert served(server).listed


async def test_the_limit_counts_those_that_are_being_loaded(server: Server) -> None:
    for number in range(MAX_ADAPTERS - 1):
        server.service.adapters.offer(f"a{number}", "first")
    server.engine.adapters.hold = True
    loading = load(server, "first")
    await eventually_async(lambda: server.service.adapters.count == MAX_ADAPTERS)
    refused = await load(server, "first", name="another")
    assert f"{MAX_ADAPTERS} adapters are loaded, which is the limit" in refused.json()["error"]["message"]
    await release(server)
    assert (await loading).status_code == 200


def use_texts(server: Server, assets: TokenizerAssets) -> None:
    """Let adapters have the chat templates of their folders, as a server does."""
    loaded = server.service.loaded
    assert loaded is not None
    model, settings = loaded.text, EngineSettings(model="smollm2")
    server.service.adapters.read_text = lambda folder: served_text(folder, model, assets, settings, 49152, 0)


async def test_a_chat_has_the_template_tokens_and_end_of_its_adapter(
    server: Server, model: TextModel, tmp_path: Path
) -> None:
    use_texts(server, model.assets)
    (tmp_path / "first" / "chat_template.jinja").write_text("Q: {{ messages[-1].content }} A:")
    (tmp_path / "first" / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    assert (await load(server, "first")).status_code == 200
    assert (await load(server, "second", name="plain")).status_code == 200
    wanted = {"sql": "Q: What is the capital of France? A:", "plain": None, "m": None}
    prompts = {}
    for name in wanted:
        answer = await server.chat(model=name)
        assert answer.status_code == 200, answer.text
        prompts[name] = server.engine.seen[-1]
        assert answer.json()["usage"]["prompt_tokens"] == len(prompts[name].tokens)
    assert model.tokenizer.decode(prompts["sql"].tokens) == wanted["sql"]
    assert prompts["plain"].tokens == prompts["m"].tokens
    assert [prompts[name].ends for name in wanted] == [(0,), (), ()]
    shown = await server.api.post("/tokenize", json={"model": "sql", "messages": [{"role": "user", "content": "Hi"}]})
    assert model.tokenizer.decode(shown.json()["tokens"]) == "Q: Hi A:"
    responded = await server.respond(model="sql")
    assert responded.status_code == 200, responded.text
    assert model.tokenizer.decode(server.engine.seen[-1].tokens) == wanted["sql"]


async def test_files_that_cannot_be_used_fail_the_adapter_alone(
    server: Server, model: TextModel, tmp_path: Path
) -> None:
    use_texts(server, model.assets)
    (tmp_path / "first" / "chat_template.jinja").write_text("{% for")
    refused = await load(server, "first")
    assert refused.status_code == 400
    assert "first: chat template, line 1: " in refused.json()["error"]["message"]
    assert server.service.adapters.find("sql") is None
    server.service.adapters.offer("listed", str(tmp_path / "first"))
    await eventually_async(lambda: server.service.adapters.reports()[0].state == "failed")
    assert "chat template" in server.service.adapters.reports()[0].failure
    answer = await server.chat(model="listed")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "adapter_unavailable")
    assert (await server.chat()).status_code == 200


async def test_files_that_cannot_be_read_now_are_read_later(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the server reads, then those that the engine reads: no one has to offer the adapter again."""
    monkeypatch.setattr(adapters, "_RETRY_SECONDS", 0.01)
    attempts: list[str] = []

    def read(folder: Path) -> None:
        attempts.append(folder.name)
        if len(attempts) < 3:
            raise UnreadableError(f"{folder}: cannot be read: Stale file handle")

    server.service.adapters.read_text = read
    server.service.adapters.offer("sql", "/adapters/first", "hub", listed=True)
    await release(server)
    await eventually_async(lambda: served(server).report.state == "loaded")
    assert attempts == ["first"] * 3
    assert (served(server).source, served(server).listed) == ("hub", True)
    server.service.adapters.update([failed(served(server), may_pass=True)])
    assert served(server).failure
    await eventually_async(lambda: len(attempts) == 4)
    await release(server)
    await eventually_async(lambda: served(server).report.state == "loaded")
    server.service.adapters.update([failed(served(server), may_pass=False)])
    assert served(server).again is None, "what is wrong for good is not read again"


async def test_an_adapter_that_is_withdrawn_is_not_read_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "_RETRY_SECONDS", 0.05)
    server.service.adapters.offer("sql", "/adapters/first")
    await release(server)
    await eventually_async(lambda: served(server).report.state == "loaded")
    server.service.adapters.update([failed(served(server), may_pass=True)])
    server.service.adapters.withdraw("sql")
    await asyncio.sleep(0.2)
    assert server.service.adapters.find("sql") is None


def failed(adapter: ServedAdapter, *, may_pass: bool) -> EngineAdapter:
    return EngineAdapter(key=adapter.key, state="failed", failure="cannot be read", may_pass=may_pass)


async def test_a_request_waits_until_the_template_of_its_adapter_is_read(
    server: Server, model: TextModel, tmp_path: Path
) -> None:
    use_texts(server, model.assets)
    read, gate = server.service.adapters.read_text, threading.Event()

    def slowly(folder: Path) -> ServedText | None:
        gate.wait(30)
        return read(folder)

    server.service.adapters.read_text = slowly
    (tmp_path / "first" / "chat_template.jinja").write_text("Q: {{ messages[-1].content }} A:")
    server.service.adapters.offer("sql", str(tmp_path / "first"))
    asking = asyncio.create_task(server.chat(model="sql"))
    await eventually_async(lambda: server.engine.adapters.offered)
    assert (await server.chat()).status_code == 200, "others do not wait"
    assert not asking.done()
    assert server.service.adapters.reports()[0].state == "loading"
    gate.set()
    assert (await asking).status_code == 200
    assert model.tokenizer.decode(server.engine.seen[-1].tokens).startswith("Q: ")


@pytest.mark.parametrize("state", ["draining", "sleeping"])
async def test_a_request_that_waited_is_refused_as_one_that_comes_then(
    server: Server, tmp_path: Path, state: str
) -> None:
    gate = threading.Event()

    def slowly(_: Path) -> None:
        gate.wait(30)

    server.service.adapters.read_text = slowly
    server.service.adapters.offer("sql", str(tmp_path / "first"))
    asking = asyncio.create_task(server.service.require("sql"))
    await asyncio.sleep(0)  # it begins to wait
    await eventually_async(lambda: server.engine.adapters.offered)
    assert not asking.done()
    setattr(server.service, state, True)
    gate.set()
    with pytest.raises(ApiError) as refused:
        await asking
    assert refused.value.status == 503
    assert server.service.metrics.rejected[state] == 1
    setattr(server.service, state, False)


async def test_a_request_that_waited_has_the_adapter_that_is_there_then(server: Server, tmp_path: Path) -> None:
    gate = threading.Event()

    def slowly(folder: Path) -> None:
        if folder.name == "first":
            gate.wait(30)

    server.service.adapters.read_text = slowly
    server.service.adapters.offer("sql", str(tmp_path / "first"))
    asking = asyncio.create_task(server.service.require("sql"))
    await asyncio.sleep(0)  # it begins to wait
    server.service.adapters.withdraw("sql")
    gate.set()
    with pytest.raises(ApiError) as refused:
        await asking
    assert refused.value.status == 404


async def test_a_panic_of_the_tokenizers_library_fails_the_adapter_alone(server: Server, tmp_path: Path) -> None:
    class PanicError(BaseException):
        pass

    def panic(_: Path) -> None:
        raise PanicError

    server.service.adapters.read_text = panic
    refused = await asyncio.wait_for(load(server, "first"), 30)
    assert refused.status_code == 400
    assert "its tokenizer could not be read: PanicError" in refused.json()["error"]["message"]
    server.service.adapters.offer("listed", str(tmp_path / "first"))
    await asyncio.wait_for(server.service.adapters.settled(), 30)
    assert server.service.adapters.reports()[0].state == "failed"
    assert (await server.chat()).status_code == 200
