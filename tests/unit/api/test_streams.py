"""What happens around a stream: silence, disconnects, failures, many at once."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.support.waiting import eventually_async

from octavo_inference.engine.output_router import LOST
from octavo_inference.server.openai import completions


async def until_text(response) -> None:
    async for line in response.aiter_lines():
        if '"content":"' in line and '"content":""' not in line:
            return


async def test_disconnect_frees_everything_within_two_steps(serve):
    async with serve(listen=True, pace=0.05) as server:
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": "x"}],
            "stream": True,
            "ignore_eos": True,
            "n": 3,
        }
        async with server.api.stream("POST", "/v1/chat/completions", json=body) as response:
            await until_text(response)
        await eventually_async(lambda: server.engine.aborted)
        at_abort = server.engine.steps
        await eventually_async(lambda: not server.engine.sequences)
        report = (await server.admin.get("/v1/octavo/load")).json()
    assert server.engine.steps <= at_abort + 2
    assert (report["blocks_pinned"], report["running"]) == (0, 0)
    assert server.service.router.sequences == 0
    assert server.service.metrics.finished["abort"] == 3


async def test_disconnect_of_a_unary_request_aborts_it_too(serve):
    async with serve(listen=True, hold=True) as server:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(server.chat(), 0.3)
        await eventually_async(lambda: not server.engine.seen or not server.service.router.sequences)
    assert server.service.router.sequences == 0


async def test_silence_is_filled_with_comments(serve, monkeypatch):
    monkeypatch.setattr(completions, "KEEP_ALIVE_SECONDS", 0.02)
    async with serve(listen=True, hold=True) as server:
        body = {"model": "m", "prompt": "x", "stream": True, "max_tokens": 40}
        async with server.api.stream("POST", "/v1/completions", json=body) as response:
            lines = response.aiter_lines()
            first = [await anext(lines) for _ in range(4)]
            server.release()
            rest = [line async for line in lines]
    assert first == [": keep-alive", ""] * 2
    assert "".join(json.loads(line[6:])["choices"][0]["text"] for line in rest if line.startswith("data: {")) == (
        server.engine.answer
    )


async def test_a_failure_before_the_first_token_is_an_http_error(serve):
    async with serve(fail_at=1) as server:
        responses = [await server.chat(stream=stream) for stream in (True, False)]
        live = await server.api.get("/livez")
        ready = await server.api.get("/readyz")
    for response in responses:
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert response.json()["error"]["code"] == "engine_unavailable"
    assert (live.status_code, ready.status_code) == (503, 503)
    for response in (*responses, live):
        assert "device" not in response.text, "the cause is for the operator"


async def test_a_failure_after_it_is_an_error_event_and_no_clean_end(serve):
    async with serve(fail_at=4, pace=0.02) as server:
        response = await server.chat(stream=True, n=2)
    blocks = [block for block in response.text.split("\n\n") if block]
    assert response.status_code == 200
    error = json.loads(blocks[-1].removeprefix("data: "))["error"]
    assert (error["code"], error["message"]) == ("engine_unavailable", LOST)
    assert "[DONE]" not in response.text
    assert 'finish_reason":"' not in response.text


async def test_32_streams_do_not_mix(serve):
    async with serve() as server:
        responses = await asyncio.gather(
            *(server.complete(prompt=f"{i}", echo=True, stream=True, max_tokens=40) for i in range(32))
        )
    for i, response in enumerate(responses):
        chunks = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
        assert "".join(c["choices"][0]["text"] for c in chunks) == f"{i}{server.engine.answer}"


async def test_a_stopped_sequence_is_aborted_alone(serve):
    async with serve(pace=0.01) as server:
        answer = (await server.chat(n=2, stop=" is")).json()
        await eventually_async(lambda: len(server.engine.aborted) == 2)
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "stop"]
    assert sorted(index for _, index in server.engine.aborted) == [0, 1]


async def test_per_key_and_per_salt_caches(serve):
    async with serve() as server:
        await server.complete()
        await server.complete(cache_salt="team-a")
    assert [request.salt for request in server.engine.seen] == ["", "team-a"]


async def test_requests_that_share_an_id_do_not_share_answers(serve):
    headers = {"x-request-id": "same"}
    async with serve(pace=0.005) as server:
        bodies = [{"model": "m", "prompt": prompt, "echo": True, "max_tokens": 40} for prompt in "ab"]
        asks = [server.api.post("/v1/completions", json=body, headers=headers) for body in bodies]
        answers = [response.json() for response in await asyncio.gather(*asks)]
    assert [answer["choices"][0]["text"] for answer in answers] == [
        f"{prompt}{server.engine.answer}" for prompt in "ab"
    ]
    assert answers[0]["id"] != answers[1]["id"]
