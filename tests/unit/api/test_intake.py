"""Bodies and texts of hostile clients: bounded in bytes and in time, and dropped with the client that sent them."""

from __future__ import annotations

import asyncio
import json
import logging
import threading

import pytest
from tests.support.waiting import eventually_async

from octavo_inference.server import json_body
from octavo_inference.server.intake import LARGE_BODY

JSON = b"Host: h\r\nContent-Type: application/json\r\n"


async def connect(server):
    url = server.api.base_url
    return await asyncio.open_connection(url.host, url.port)


def post(body: bytes, length: int | None = None) -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\n" + JSON
    return head + b"Content-Length: %d\r\n\r\n" % (len(body) if length is None else length) + body


def completion(**fields: object) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


async def test_a_client_that_leaves_in_mid_body_is_one_line_with_499(serve, caplog):
    caplog.set_level(logging.INFO)
    async with serve(listen=True) as server:
        _, writer = await connect(server)
        writer.write(post(b'{"model"', 1000))
        await writer.drain()
        await eventually_async(lambda: server.service.intake.held == 8)
        writer.close()
        await eventually_async(lambda: bool(caplog.records))
    [record] = caplog.records
    assert (record.status, record.levelname, record.exc_info) == (499, "INFO", None)
    assert server.service.intake.held == 0


async def test_bodies_that_do_not_fit_are_503_and_counted(serve):
    async with serve(listen=True) as server:
        server.service.intake.max_bytes = 100_000
        _, writer = await connect(server)
        writer.write(post(b"x" * 40_000, 50_000))
        await eventually_async(lambda: server.service.intake.held == 40_000)
        refused = await server.complete(prompt="y" * 20_000)
        small = await server.complete(max_tokens=1)
        writer.close()
        await eventually_async(lambda: server.service.intake.held == 0)
        metrics = (await server.admin.get("/metrics")).text
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert int(refused.headers["retry-after"]) > 0
    assert small.status_code == 200
    assert 'octavo:admission_rejections_total{model_name="m",reason="intake_full"} 1.0' in metrics


async def test_an_empty_server_has_room_for_the_largest_body(serve):
    async with serve(listen=True) as server:
        assert server.service.intake.max_bytes // 2 >= json_body.MAX_BODY
        response = await server.complete(prompt="a" * (json_body.MAX_BODY - 100))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [5] * 513},
        {"prompt": [[5] * 513, [5]]},
        {"prompt": ["a", "a b " * 20_000]},
        {"prompt": "\N{CAT FACE}" * 3000},
        {"prompt": ["a b " * 600] * 100},
    ],
)
async def test_a_prompt_above_the_context_is_400_with_the_numbers(serve, fields):
    async with serve() as server:
        response = await server.complete(**fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
    assert "maximum context length is 512 tokens" in error["message"]
    assert server.engine.seen == []


async def test_too_many_ids_are_refused_before_the_body_is_decoded(serve, monkeypatch):
    decoded: list[int] = []
    monkeypatch.setattr(json_body, "decode", lambda *_: decoded.append(1))
    async with serve() as server:
        response = await server.complete(prompt=[7] * 600)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "600 in the prompt" in response.json()["error"]["message"]
    assert decoded == []


async def test_text_that_looks_like_ids_is_text(serve):
    async with serve() as server:
        response = await server.complete(prompt='{"prompt": [' + "1," * 100, user='"prompt": [1' + ",1" * 100)
    assert response.status_code == 200


async def test_after_a_prompt_that_is_too_long_no_other_is_tokenised(serve, monkeypatch):
    async with serve() as server:
        asked: list[str] = []
        loaded = type(server.service.loaded)
        original = loaded.prompt_tokens
        monkeypatch.setattr(
            loaded, "prompt_tokens", lambda self, text, **how: asked.append(text) or original(self, text, **how)
        )
        response = await server.complete(prompt=["a", "b c " * 600, "d"])
    assert response.status_code == 400
    assert len(asked) == 2


async def test_the_texts_of_a_client_that_leaves_are_dropped(serve):
    gate = threading.Event()
    async with serve(listen=True) as server:
        # Both threads are busy, so the request waits.
        busy = [asyncio.create_task(server.service.texts.run("x", [lambda: gate.wait(30)])) for _ in range(2)]
        await asyncio.sleep(0)
        _, writer = await connect(server)
        writer.write(post(completion(prompt=["a"] * 5)))
        await eventually_async(lambda: server.service.texts.waiting == 1)
        writer.close()
        await eventually_async(lambda: server.service.texts.waiting == 0)
        gate.set()
        await asyncio.gather(*busy)
    assert server.engine.seen == []


async def test_a_client_that_leaves_frees_its_place_among_large_bodies(serve):
    gate = threading.Event()
    async with serve(listen=True) as server:
        turns = server.service.intake.turns
        for _ in range(2):
            await turns.enter("other")
        _, writer = await connect(server)
        writer.write(post(completion(prompt="a" * LARGE_BODY)))
        await eventually_async(lambda: server.service.intake.held > LARGE_BODY)
        writer.close()
        await eventually_async(lambda: server.service.intake.held == 0)
        turns.leave()
        answer = await asyncio.wait_for(server.complete(prompt="a b " * LARGE_BODY), 20)
        gate.set()
    assert answer.status_code == 400


async def test_the_event_loop_is_free_while_long_texts_are_tokenised(serve):
    """With the loop blocked for as long as the texts take, it would turn a few times only."""
    async with serve(listen=True) as server:
        body = completion(prompt=["ab cd " * 5_000] * 20)
        turns = 0
        sending = asyncio.create_task(server.api.post("/v1/completions", content=body, headers={
            "content-type": "application/json"}))  # fmt: skip
        while not sending.done():
            await asyncio.sleep(0.001)
            turns += 1
    assert (await sending).status_code == 400
    assert turns > 3


@pytest.mark.parametrize("tenant_header", [True, False])
async def test_a_client_is_the_tenant_that_a_gateway_names_or_else_an_address(serve, tenant_header):
    async with serve(listen=True, tenant_header=tenant_header) as server:
        server.service.intake.max_bytes = 100_000
        head = b"POST /v1/completions HTTP/1.1\r\n" + JSON + b"X-Octavo-Tenant: many\r\nContent-Length: 50000\r\n\r\n"
        _, writer = await connect(server)
        writer.write(head + b"x" * 40_000)
        await eventually_async(lambda: server.service.intake.held == 40_000)
        same, other = [
            await server.complete(headers={"X-Octavo-Tenant": name}, prompt="y" * 20_000) for name in ("many", "one")
        ]
        writer.close()
    assert same.status_code == 503
    assert other.status_code == (400 if tenant_header else 503)


async def test_the_reservation_of_a_request_ends_with_it(serve):
    async with serve(listen=True) as server:
        for fields in ({}, {"n": 0}, {"prompt": "y" * LARGE_BODY}, {"model": "other"}):
            await server.complete(**fields)
            assert server.service.intake.held == 0
        await asyncio.wait_for(server.service.intake.turns.enter("a"), 1)
        await asyncio.wait_for(server.service.intake.turns.enter("b"), 1)
