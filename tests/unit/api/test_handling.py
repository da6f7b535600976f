"""What a request may ask of the scheduler and the prefix cache, and how an engine with wrong accounting ends."""

from __future__ import annotations

import pytest
from tests.support.waiting import eventually_async

from octavo_inference.common.errors import DeviceLostError
from octavo_inference.core.block_pool import PoolError
from octavo_inference.core.request import DEADLINE, Output
from octavo_inference.engine import process
from octavo_inference.engine.client import ProcessClient
from octavo_inference.engine.output_router import EngineDiedError
from octavo_inference.server.auth import Keys
from octavo_inference.server.prompts import timeout

from .test_process import INFO, Child, outputs, request


async def test_a_request_says_how_it_is_to_be_handled(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\nother\n")
    headers = {"Authorization": "Bearer secret", "X-Request-Timeout": "2.5"}
    body = {"model": "m", "prompt": "Once", "priority": 3, "cache_policy": "batch", "cache_salt": "s", "max_tokens": 1}
    async with serve(keys=Keys(str(keys), "--api-key-file")) as server:
        await server.api.post("/v1/completions", json=body, headers=headers)
        await server.api.post("/v1/completions", json=body, headers={"x-api-key": "other"})
    first, second = server.engine.seen
    assert (first.priority, first.cache_policy, first.timeout) == (3, "batch", 2.5)
    assert second.timeout is None
    assert first.salt == f"{first.tenant}/s"
    assert first.tenant != second.tenant, "whoever holds a key shares fairly with who holds another"


@pytest.mark.parametrize(("given", "seconds"), [("0.001", 0.001), ("86400", 86400.0), ("86400.000", 86400.0)])
def test_the_smallest_and_the_largest_timeout_are_taken(given, seconds):
    assert timeout(given) == seconds


@pytest.mark.parametrize("given", ["0", "-1", "abc", "1e3", "86401", "nan", ""])
async def test_a_senseless_timeout_is_refused(serve, given):
    async with serve() as server:
        answer = await server.api.post(
            "/v1/completions", json={"model": "m", "prompt": "Once"}, headers={"X-Request-Timeout": given}
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "X-Request-Timeout"


@pytest.mark.parametrize(("field", "value"), [("priority", 11), ("priority", 1.5), ("cache_policy", "forever")])
async def test_bounds(serve, field, value):
    async with serve() as server:
        answer = await server.complete(**{field: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


async def test_a_deadline_before_the_first_token_is_504_and_later_an_answer_cut_short(serve):
    async with serve() as server:

        def expire():
            [sequence] = server.engine.sequences
            server.engine.sequences.clear()
            reason = "length" if sequence.done else "error"
            error = None if sequence.done else "its time of 2 s was up before its first token"
            name = sequence.request.id
            return [Output(id=name, index=0, tokens=[], finish_reason=reason, stop_reason=DEADLINE, error=error)]

        step, server.engine.step = server.engine.step, expire
        waited = await server.complete()
        server.engine.step = lambda: step() if server.engine.sequences[0].done < 3 else expire()
        cut = await server.complete()
    assert (waited.status_code, waited.json()["error"]["code"]) == (504, "deadline_exceeded")
    choice = cut.json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "deadline")
    assert cut.json()["usage"]["completion_tokens"] == 3
    assert choice["text"].startswith("The capital of")


async def test_the_cache_is_reset_before_what_comes_later(serve):
    async with serve(listen=True) as server:
        answer = await server.admin.post("/v1/octavo/cache/reset")
        await server.complete(max_tokens=1)
        assert (answer.status_code, answer.json()) == (200, {"reset": True})
        assert server.engine.resets == 1
        assert (await server.api.post("/v1/octavo/cache/reset")).status_code == 404, "not for clients"
        await eventually_async(lambda: server.engine.rests > 0)


async def test_the_cache_cannot_be_reset_while_loading(serve):
    async with serve(ready=False) as server:
        assert (await server.admin.post("/v1/octavo/cache/reset")).status_code == 503


async def test_settings_in_effect_are_exported(serve):
    async with serve() as server:
        text = (await server.admin.get("/metrics")).text
    [line] = [line for line in text.splitlines() if line.startswith("octavo:engine_info{")]
    assert 'profile="balanced"' in line
    assert 'max_running_requests="8"' in line


async def test_wrong_accounting_ends_the_engine_with_a_status_of_their_own(fake_engine):
    def wrong():
        raise PoolError("block 3 has ref 1, 0 sequences hold it")

    fake_engine.on_idle = wrong
    child = Child(lambda _: (fake_engine, INFO))
    client = ProcessClient(child, stall_seconds=30)
    await client.start()
    await outputs(client, request("a"))
    error = await client.router.failed()
    child.thread.join(5)
    await client.close()
    assert isinstance(error, EngineDiedError)
    assert (error.status, child.status) == (71, process.EXIT_CORRUPT)
    assert "block 3 has ref 1" in str(error)


async def test_a_lost_gpu_ends_the_engine_with_a_status_of_its_own(fake_engine):
    def lost():
        raise DeviceLostError("the GPU failed and cannot recover: an illegal memory access")

    fake_engine.step = lost
    child = Child(lambda _: (fake_engine, INFO))
    client = ProcessClient(child, stall_seconds=30)
    await client.start()
    client.router.submit([request("a")], lambda _: None)
    error = await client.router.failed()
    child.thread.join(5)
    await client.close()
    assert (error.status, child.status) == (72, process.EXIT_DEVICE_LOST)
    assert "an illegal memory access" in str(error)
