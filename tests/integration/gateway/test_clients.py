"""Clients of both APIs through gateway processes: every surface, the answers of pods that are made up."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import anthropic
import openai
import pytest
from aiohttp import web
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from tests.integration.gateway.conftest import Gateway, StartGateway
from tests.support.waiting import eventually_async

KEYS = {
    "keys": [
        {"name": "team-a", "key": "alpha", "tokensPerMinute": 100_000},
        {"name": "team-b", "key": "beta", "requestsPerMinute": 1},
        {"name": "team-c", "key": "gamma", "models": ["other"]},
    ]
}
NAMES = ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
         "message_stop")  # fmt: skip
INPUT_USAGE = {"input_tokens": 11, "output_tokens": 1}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": INPUT_USAGE,
}


def answer(identity: str, status: str = "completed", *, text: str = "Paris") -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "id": identity,
        "object": "response",
        "created_at": 1.0,
        "status": status,
        "model": "m",
        "output": [{"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 11,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 4,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 15,
        },
    }


class Replica:
    """A pod that answers every route with an object of its API. `cut`: it breaks its streams off."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.stored: set[str] = set()
        self.cut = False
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read() or b"{}")
        self.paths.append(f"{request.method} {request.path}")
        if request.path.startswith("/v1/responses/"):
            return self._of_stored(request)
        if body.get("stream"):
            return await self._stream(request)
        return web.json_response(self._whole(request.path, body))

    def _of_stored(self, request: web.Request) -> web.Response:
        _, _, _, identity, *rest = request.path.split("/")
        if identity not in self.stored:
            return web.json_response({"error": {"message": "unknown"}}, status=404)
        if rest == ["input_items"]:
            page = {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}
            return web.json_response(page)
        if request.method == "DELETE":
            self.stored.remove(identity)
            return web.json_response({"id": identity, "object": "response", "deleted": True})
        return web.json_response(answer(identity))

    def _whole(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        match path:
            case "/v1/responses":
                identity = f"resp_{uuid4().hex}"
                self.stored.add(identity)
                return answer(identity)
            case "/v1/embeddings":
                vector = {"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}
                usage = {"prompt_tokens": 3, "total_tokens": 3}
                return {"object": "list", "model": "m", "data": [vector], "usage": usage}
            case "/v1/messages":
                return {**MESSAGE, "content": [{"type": "text", "text": "Paris"}], "stop_reason": "end_turn"}
            case "/v1/messages/count_tokens":
                return {"input_tokens": 11}
            case "/tokenize":
                return {"count": 1, "max_model_len": 8, "tokens": [len(body["prompt"])]}
            case _:
                return {"object": "made up"}

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        events = _message_events() if request.path == "/v1/messages" else _response_events()
        for event in events[: 3 if self.cut else None]:
            await stream.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        if self.cut and request.transport is not None:
            request.transport.abort()
        return stream


def _message_events() -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [
        {"message": MESSAGE},
        {"index": 0, "content_block": {"type": "text", "text": ""}},
        {"index": 0, "delta": {"type": "text_delta", "text": "Paris"}},
        {"index": 0},
        {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 4}},
        {},
    ]
    return [{"type": name, **part} for name, part in zip(NAMES, parts, strict=True)]


def _response_events() -> list[dict[str, Any]]:
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
    created = answer("resp_s", "in_progress") | {"output": [], "usage": None}
    return [
        {"type": "response.created", "response": created, "sequence_number": 0},
        {"type": "response.output_text.delta", **place, "delta": "Pa", "sequence_number": 1},
        {"type": "response.output_text.delta", **place, "delta": "ris", "sequence_number": 2},
        {"type": "response.completed", "response": answer("resp_s"), "sequence_number": 3},
    ]


@pytest.fixture
async def replicas() -> AsyncIterator[list[Replica]]:
    made = [Replica(), Replica()]
    async with AsyncExitStack() as stack:
        for replica in made:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", replica.handle)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            assert site._server is not None
            replica.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
        yield made


@pytest.fixture
def gateway(replicas: list[Replica], start_gateway: StartGateway, tmp_path: Path) -> Gateway:
    return another(replicas, start_gateway, tmp_path)


def another(replicas: list[Replica], start_gateway: StartGateway, folder: Path) -> Gateway:
    path = folder / "keys"
    path.write_text(json.dumps(KEYS))
    return start_gateway("--api-key-file", str(path), pods=[replica.url for replica in replicas])


def of_openai(gateway: Gateway, key: str = "alpha") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)


def of_anthropic(gateway: Gateway, key: str = "alpha") -> AsyncAnthropic:
    return AsyncAnthropic(base_url=gateway.url, api_key=key, max_retries=0)


ASK: Any = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "The capital of France?"}]}


async def test_a_stored_response_through_another_gateway(
    gateway: Gateway, replicas: list[Replica], start_gateway: StartGateway, tmp_path: Path
) -> None:
    other = another(replicas, start_gateway, tmp_path)
    async with of_openai(gateway) as first, of_openai(other) as second:
        for _ in range(4):
            made = await first.responses.create(model="m", input="Hi")
            assert made.output_text == "Paris"
            assert (await second.responses.retrieve(made.id)).id == made.id
            await second.responses.input_items.list(made.id)
            await second.responses.cancel(made.id)
            await second.responses.delete(made.id)
            with pytest.raises(openai.NotFoundError):
                await second.responses.retrieve(made.id)


async def test_a_streamed_response(gateway: Gateway) -> None:
    async with of_openai(gateway) as client:
        stream = await client.responses.create(model="m", input="Hi", stream=True)
        assert [event.type async for event in stream][-1] == "response.completed"


async def test_a_broken_stream_of_a_response_ends_with_its_error_event(
    gateway: Gateway, replicas: list[Replica]
) -> None:
    for replica in replicas:
        replica.cut = True
    async with of_openai(gateway) as client:
        stream = await client.responses.create(model="m", input="Hi", stream=True)
        events = [event async for event in stream]
    last: Any = events[-1]
    assert (last.type, last.code, last.sequence_number) == ("error", "replica_lost", 3)


async def test_embeddings(gateway: Gateway) -> None:
    async with of_openai(gateway) as client:
        made = await client.embeddings.create(model="m", input="Hi", encoding_format="float")
    assert made.data[0].embedding == [0.6, 0.8]


async def test_a_message_whole_and_streamed(gateway: Gateway) -> None:
    async with of_anthropic(gateway) as client:
        whole = await client.messages.create(**ASK)
        assert whole.content[0].type == "text"
        async with client.messages.stream(**ASK) as stream:
            assert await stream.get_final_text() == "Paris"


async def test_tokens_of_a_message_are_counted(gateway: Gateway) -> None:
    async with of_anthropic(gateway) as client:
        counted = await client.messages.count_tokens(model="m", messages=ASK["messages"])
    assert counted.input_tokens == 11


async def test_a_broken_stream_of_a_message_is_an_error_of_its_client(
    gateway: Gateway, replicas: list[Replica]
) -> None:
    for replica in replicas:
        replica.cut = True
    async with of_anthropic(gateway) as client:
        with pytest.raises(anthropic.APIStatusError, match="went away"):
            async with client.messages.stream(**ASK) as stream:
                await stream.get_final_text()


async def test_models_for_anthropics_clients(gateway: Gateway) -> None:
    async with of_anthropic(gateway) as client:
        assert [model.id async for model in client.models.list()] == ["m"]
        assert (await client.models.retrieve("m")).type == "model"


async def test_refusals_are_the_errors_that_anthropics_client_knows(gateway: Gateway) -> None:
    async with of_anthropic(gateway, "wrong") as client:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            await client.messages.create(**ASK)
        assert refused.value.request_id
    async with of_anthropic(gateway, "gamma") as client:
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(**ASK)
    async with of_anthropic(gateway, "beta") as client:
        await client.messages.create(**ASK)
        with pytest.raises(anthropic.RateLimitError):
            await client.messages.create(**ASK)


async def test_a_tokenizer_without_the_name_of_a_model(gateway: Gateway) -> None:
    headers = {"Authorization": "Bearer alpha"}
    async with aiohttp.ClientSession(gateway.url, headers=headers) as session:
        async with session.post("/tokenize", json={"prompt": "four"}) as response:
            assert (await response.json())["tokens"] == [4]
        async with session.get("/tokenizer_info") as response:
            assert response.status == 200


async def test_tokens_are_counted_for_each_surface(gateway: Gateway) -> None:
    async with of_openai(gateway) as client:
        await client.responses.create(model="m", input="Hi")
        await client.embeddings.create(model="m", input="Hi", encoding_format="float")
    async with of_anthropic(gateway) as other:
        await other.messages.create(**ASK)
    # 11 + 4 of the response, 3 of the embedding, 11 + 1 of the message.
    await eventually_async(lambda: gateway.metric("octavo_gateway_key_tokens_total") == 30)
    assert gateway.metric("octavo_gateway_tokens_total") == 30
