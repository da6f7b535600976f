"""Keys, probes, models, metrics, load report and drain."""

from __future__ import annotations

import asyncio
import os

import pytest
from tests.support.waiting import eventually_async

from octavo_inference.common.errors import SettingsError
from octavo_inference.server.auth import Keys
from octavo_protocol import hashing
from octavo_protocol.load import decode_load

PATHS = ["/v1/models", "/v1/models/m", "/v1/chat/completions", "/v1/completions", "/version", "/metrics", "/nothing"]
PATHS += ["/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize", "/tokenizer_info"]
TRICKS = ["//v1/models", "/v1/%6dodels", "/V1/models", "/v1/models/", "/livez/", "/livez/../v1/models"]


@pytest.fixture
def keys(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# team a\nkey-a\n\n  key-b  \n")
    return Keys(str(file), "--api-key-file")


async def test_without_a_key_nothing_is_answered(serve, keys):
    wrong = [{}, {"authorization": "Bearer key-c"}, {"authorization": "Bearer key-a junk"}, {"x-api-key": "# team a"},
             {"authorization": "Basic key-a"}, {"x-api-key": ""}, {"authorization": "Bearer"}]  # fmt: skip
    async with serve(keys=keys) as server:
        for path in PATHS + TRICKS:
            for method in ("GET", "POST", "HEAD", "OPTIONS", "DELETE"):
                response = await server.api.request(method, path, headers=wrong[0])
                assert response.status_code == 401, (method, path)
        for headers in wrong:
            response = await server.chat()
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert (await server.api.get("/v1/models", headers=headers)).status_code == 401
    assert server.engine.seen == []


async def test_with_a_key_in_either_header(serve, keys):
    async with serve(keys=keys) as server:
        for headers in ({"authorization": "Bearer key-a"}, {"authorization": "bearer key-b"}, {"x-api-key": "key-b"}):
            assert (await server.api.get("/v1/models", headers=headers)).status_code == 200
        body = {"model": "m", "prompt": "x"}
        for key in ("key-a", "key-b"):
            await server.api.post("/v1/completions", json=body, headers={"x-api-key": key})
    salts = [request.salt for request in server.engine.seen]
    assert len(set(salts)) == 2
    assert not any("key" in salt for salt in salts)


async def test_probes_need_no_key(serve, keys):
    async with serve(keys=keys) as server:
        for path in ("/livez", "/readyz", "/startupz", "/health"):
            assert (await server.api.get(path)).status_code == 200


def test_keys_are_read_again_when_the_file_changes(tmp_path):
    now = [0.0]
    file = tmp_path / "keys"
    file.write_text("old")
    keys = Keys(str(file), "--api-key-file", clock=lambda: now[0])
    file.write_text("newer")
    assert keys.tenant("newer") is None
    now[0] = 10.0
    assert keys.tenant("newer")
    assert keys.tenant("old") is None
    file.write_text("")
    now[0] = 20.0
    assert keys.tenant("newer"), "a file that is empty for a moment locks nobody out"


def test_a_key_file_without_keys_is_refused(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# none\n")
    with pytest.raises(SettingsError, match="holds no key"):
        Keys(str(file), "--api-key-file")
    with pytest.raises(SettingsError, match="cannot read"):
        Keys(str(tmp_path / "missing"), "--api-key-file")


async def test_while_loading(serve):
    async with serve(ready=False) as server:
        status = {path: (await server.api.get(path)).status_code for path in ("/livez", "/readyz", "/startupz")}
        refused = await server.chat()
        report = await server.admin.get("/v1/octavo/load")
        metrics = await server.admin.get("/metrics")
    assert status == {"/livez": 200, "/readyz": 503, "/startupz": 503}
    assert refused.json()["error"]["code"] == "not_ready"
    assert "retry-after" in refused.headers
    assert (report.status_code, metrics.status_code) == (503, 200)


async def test_while_draining(serve):
    async with serve(hold=True) as server:
        running = asyncio.create_task(server.chat())
        await eventually_async(lambda: server.service.router.stats.running == 1)
        server.service.draining = True
        status = {path: (await server.api.get(path)).status_code for path in ("/livez", "/readyz", "/startupz")}
        refused = await server.chat()
        report = decode_load((await server.admin.get("/v1/octavo/load")).content)
        server.release()
        finished = await running
    assert status == {"/livez": 200, "/readyz": 503, "/startupz": 200}
    assert (refused.status_code, refused.headers["x-octavo-draining"]) == (503, "1")
    assert "retry-after" in refused.headers
    assert (report.draining, report.ready, report.running) == (True, False, 1)
    assert finished.json()["choices"][0]["message"]["content"] == server.engine.answer


async def test_drain_is_asked_for_on_the_admin_port(serve):
    async with serve() as server:
        got = await server.admin.get("/v1/octavo/drain")
        posted = await server.admin.post("/v1/octavo/drain")
    assert (got.status_code, posted.status_code, server.drained) == (405, 202, [True])


async def test_models(serve):
    async with serve() as server:
        listed = (await server.api.get("/v1/models")).json()
        one = (await server.api.get("/v1/models/alias")).json()
        version = (await server.api.get("/version")).json()
        by_alias = await server.chat(model="alias")
    assert [m["id"] for m in listed["data"]] == ["m", "alias"]
    assert one == {
        "id": "alias",
        "created": 1,
        "root": "m",
        "max_model_len": 512,
        "task": "generate",
        "parent": None,
        "object": "model",
        "owned_by": "octavo",
    }
    assert version == {"version": "1.2.3"}
    assert by_alias.json()["model"] == "alias"


async def test_load_report(serve):
    async with serve() as server:
        reports = [decode_load((await server.admin.get("/v1/octavo/load")).content) for _ in range(2)]
    assert reports[1].sequence > reports[0].sequence
    assert (reports[0].model, reports[0].ready, reports[0].max_waiting, reports[0].start_time) == ("m", True, 100, 1.0)


async def test_metrics_are_exact(serve):
    async with serve(answer="one " * 100) as server:
        for _ in range(5):
            await asyncio.gather(server.complete(max_tokens=10), server.complete(max_tokens=10, stream=True))
        text = (await server.admin.get("/metrics")).text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    for prefix in ("octavo:", "vllm:"):

        def value(name: str, labels: str = "", prefix: str = prefix) -> float:
            return float(values[f'{prefix}{name}{{{labels}model_name="m"}}'])

        assert value("time_to_first_token_seconds_count") == 10
        assert value("inter_token_latency_seconds_count") == 90
        assert value("generation_tokens_total") == 100
        assert value("e2e_request_latency_seconds_count") == 10
        assert value("prompt_tokens_total") == value("prefix_cache_queries_total") == 10
        assert value("prefix_cache_hits_total") == 70
        assert value("request_success_total", 'finished_reason="length",') == 10
        assert value("num_requests_running") == value("num_requests_waiting") == value("kv_cache_usage_perc") == 0
        assert value("num_preemptions_total") == 0
        for phase in ("queue_time", "prefill_time", "decode_time", "inference_time", "time_per_output_token"):
            assert value(f"request_{phase}_seconds_count") == 10
        for size in ("prompt_tokens", "generation_tokens", "params_max_tokens", "params_n"):
            assert value(f"request_{size}_count") == 10
        assert value("request_generation_tokens_sum") == value("request_params_max_tokens_sum") == 100


async def test_the_load_report_tells_of_the_cache_to_who_asks(serve):
    async with serve() as server:
        server.engine.changes[:] = [(b"12345678abcdefgh", b""), (b"", b"12345678")]
        await server.complete(max_tokens=1)
        first = await load(server, "?cache_after=0")
        await server.complete(max_tokens=1)
        then = await load(server, f"?cache_after={first.sequence}")
        plain = decode_load((await server.admin.get("/v1/octavo/load")).content)
    assert first.reset
    assert set(hashing.keys(first.added)) == {b"12345678", b"abcdefgh"}
    assert (then.reset, then.added, then.removed) == (False, b"", b"12345678")
    assert plain.cache is None


@pytest.mark.parametrize("query", ["", "-1", "1.5", "x", "1e3", "٣", "1" * 19, "1&cache_after=2"])
async def test_a_senseless_sequence_is_refused(serve, query):
    async with serve() as server:
        answer = await server.admin.get(f"/v1/octavo/load?cache_after={query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_after")


async def load(server, query):
    return decode_load((await server.admin.get(f"/v1/octavo/load{query}")).content).cache


async def test_a_reader_that_does_not_read_keeps_nobody_waiting(serve):
    async with serve(listen=True) as server:
        server.engine.changes[:] = [(os.urandom(8 * 100_000), b"")]
        await server.complete(max_tokens=1)
        address = server.admin.base_url
        writers = []
        for _ in range(8):
            _, writer = await asyncio.open_connection(address.host, address.port, limit=1)
            writer.transport.pause_reading()
            writer.write(b"GET /v1/octavo/load?cache_after=0 HTTP/1.1\r\nHost: x\r\n\r\n")
            writers.append(writer)
        answers = [await load(server, "?cache_after=0") for _ in range(3)]
        assert (await server.complete()).status_code == 200
        for writer in writers:
            writer.transport.abort()
    assert [len(answer.added) for answer in answers] == [8 * 100_000] * 3
