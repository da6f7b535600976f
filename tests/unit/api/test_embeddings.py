"""POST /v1/embeddings: inputs in all four forms, both encodings, bounds and errors."""

from __future__ import annotations

import asyncio
import base64
import struct

import pytest
from tests.support.waiting import eventually_async


def unit(*numbers: float) -> list[float]:
    length = sum(number * number for number in numbers) ** 0.5
    return [number / length for number in numbers]


async def embed(server, headers=None, **fields):
    return await server.api.post("/v1/embeddings", json={"model": "m", "input": "Once"} | fields, headers=headers)


@pytest.mark.parametrize("given", ["Once", ["Once", "Twice"], [5, 6, 7], [[5, 6], [7]]])
async def test_inputs_in_every_form(serve, given):
    async with serve() as server:
        answer = (await embed(server, input=given)).json()
    seen = [request.tokens for request in server.engine.seen]
    assert [entry["index"] for entry in answer["data"]] == list(range(len(seen)))
    assert [entry["embedding"] for entry in answer["data"]] == [
        pytest.approx(unit(1 + tokens[0] % 7, 2, 2, len(tokens)), rel=1e-6) for tokens in seen
    ]
    count = sum(map(len, seen))
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert (answer["object"], answer["model"], answer["data"][0]["object"]) == ("list", "m", "embedding")


async def test_base64_is_little_endian_float32(serve):
    async with serve() as server:
        numbers = (await embed(server)).json()["data"][0]["embedding"]
        text = (await embed(server, encoding_format="base64")).json()["data"][0]["embedding"]
    assert list(struct.unpack("<4f", base64.b64decode(text))) == numbers


async def test_fewer_dimensions_are_the_first_ones_of_length_1(serve):
    async with serve() as server:
        answer = (await embed(server, input=[7, 8], dimensions=3)).json()
    assert answer["data"][0]["embedding"] == pytest.approx(unit(1, 2, 2), rel=1e-6)


async def test_the_request_to_the_engine_is_pooled_and_kept_briefly(serve):
    async with serve() as server:
        await embed(server, cache_salt="s", priority=3)
    [request] = server.engine.seen
    assert (request.pooling, request.cache_policy, request.priority) == ("last", "batch", 3)


async def test_a_cache_policy_of_the_request_holds(serve):
    async with serve() as server:
        await embed(server, cache_policy="chat")
    assert server.engine.seen[0].cache_policy == "chat"


@pytest.mark.parametrize(("keep", "kept"), [(2, [8, 9]), (5, [7, 8, 9]), (-1, [7, 8, 9])])
async def test_the_last_tokens_are_kept(serve, keep, kept):
    async with serve() as server:
        await embed(server, input=[7, 8, 9], truncate_prompt_tokens=keep)
    assert server.engine.seen[0].tokens == kept


async def test_minus_one_keeps_as_many_as_the_context_has(serve):
    async with serve() as server:
        response = await embed(server, input=list(range(600)), truncate_prompt_tokens=-1)
    assert response.status_code == 200
    assert server.engine.seen[0].tokens == list(range(88, 600))


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "1"),
        ({"input": [[]]}, "input", "1"),
        ({"input": ["a", [1]]}, "input", "give one text, a list of texts"),
        ({"input": [1, "a"]}, "input", "give one text, a list of texts"),
        ({"input": ["a"] * 2049}, "input", "2049 inputs in one request; the limit is 2048"),
        ({"input": [10**6]}, "input", "1000000 is not a token"),
        ({"input": list(range(513))}, "input", "maximum context length is 512 tokens"),
        ({"input": "word " * 100_000}, "input", "maximum context length is 512 tokens"),
        ({"dimensions": 0}, "dimensions", "1"),
        ({"dimensions": 5}, "dimensions", "5 is more than the model's 4"),
        ({"encoding_format": "int8"}, "encoding_format", "int8"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "0 leaves no prompt"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "-1"),
        ({"stream": True}, "stream", "stream"),
        ({"model": "other"}, "model", "not served"),
    ],
)
async def test_what_is_refused_names_field_and_limit(serve, fields, param, words):
    async with serve() as server:
        response = await embed(server, **fields)
    error = response.json()["error"]
    assert response.status_code == (404 if param == "model" else 400)
    assert error["param"].startswith(param)
    assert words in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert server.engine.seen == []


async def test_a_whole_context_is_embedded(serve):
    async with serve() as server:
        assert (await embed(server, input=list(range(512)))).status_code == 200


async def test_more_numbers_than_a_response_may_hold_are_refused(serve):
    async with serve(hidden_size=4096) as server:
        response = await embed(server, input=["a"] * 1000)
    assert "send fewer inputs, ask for fewer dimensions, or for encoding_format base64" in response.text


async def test_a_model_without_hidden_states_is_refused(serve):
    async with serve(hidden_size=0) as server:
        response = await embed(server)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "model")


async def test_many_inputs_pass_through_a_short_queue(serve):
    async with serve(max_queued=4) as server:
        answer = (await embed(server, input=[[i % 7 + 1, 1] for i in range(300)])).json()
    assert len(answer["data"]) == 300
    assert answer["data"][5]["embedding"] == pytest.approx(unit(1 + 6, 2, 2, 2), rel=1e-6)


async def test_a_full_queue_is_503(serve):
    async with serve(listen=True, hold=True, max_queued=0) as server:
        others = [asyncio.create_task(embed(server, input="a")) for _ in range(8)]
        await eventually_async(lambda: len(server.engine.seen) == 8)
        response = await embed(server)
        server.release()
        await asyncio.gather(*others)
    assert response.status_code == 503
    assert "retry-after" in response.headers


async def test_a_client_that_leaves_frees_its_prompts(serve):
    async with serve(listen=True, hold=True) as server:
        task = asyncio.create_task(embed(server, input=["a", "b", "c"]))
        await eventually_async(lambda: len(server.engine.seen) == 3)
        task.cancel()
        await eventually_async(lambda: server.service.router.sequences == 0)
        assert server.service.metrics.finished["abort"] == 3
        server.release()


async def test_what_the_metrics_count(serve):
    async with serve() as server:
        await embed(server, input=[[1, 2, 3], [4, 5]])
    metrics = server.service.metrics
    assert (metrics.prompt_tokens, metrics.generation_tokens, metrics.finished["stop"]) == (5, 0, 2)
    assert metrics.request.cumulative()[0][-1] == ("+Inf", 2.0)
    assert metrics.first_token.cumulative()[0][-1] == ("+Inf", 0.0)


async def test_an_engine_that_fails_is_an_error(serve):
    async with serve(fail_at=1) as server:
        response = await embed(server)
    assert response.status_code >= 500
    assert server.service.metrics.finished["error"] == 1
