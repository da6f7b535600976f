"""The HTTP surface: routes, refusals, keys, health, metrics."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from octavo_gateway.access.key_file import KeyFile
from octavo_gateway.http.page import PAGE_PATHS
from octavo_protocol.routes import OPEN_PATHS

CHAT = "/v1/chat/completions"


async def error_of(response):
    assert response.content_type == "application/json"
    error = (await response.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert not re.search(r"/work|/usr|Traceback|aiohttp|msgspec|127\.0\.0\.1", error["message"])
    return error


async def test_models_are_listed_with_their_aliases(world):
    await world.start()
    world.has()
    async with world.client.get(world.url + "/v1/models") as response:
        listed = await response.json()
    assert [model["id"] for model in listed["data"]] == ["m", "alias"]
    about = {"object": "model", "created": 7, "owned_by": "octavo", "root": "m", "parent": None}
    assert listed["data"] == [{"id": "m"} | about, {"id": "alias"} | about]


@pytest.mark.parametrize("name", ["m", "alias", "ns/d"])
async def test_a_model_is_found_by_every_name(world, name):
    await world.start()
    pod = await world.pod()
    world.has(pod.endpoint())
    async with world.client.get(f"{world.url}/v1/models/{name}") as response:
        assert (await response.json())["id"] == name
    async with world.post({"model": name}) as response:
        assert response.status == 200


async def test_an_unknown_model(world):
    await world.start()
    world.has()
    async with world.post({"model": "nope"}) as response:
        assert response.status == 404
        error = await error_of(response)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    async with world.client.get(world.url + "/v1/models/nope") as response:
        assert response.status == 404
        assert (await error_of(response))["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("POST", "/v1/audio/speech", 404),
        ("GET", "/metrics", 404),
        ("GET", "/v1/octavo/load", 404),
        ("GET", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("OPTIONS", CHAT, 405),
    ],
)
async def test_what_is_not_there(world, method, path, status):
    await world.start()
    async with world.client.request(method, world.url + path) as response:
        assert response.status == status
        assert "X-Request-Id" in response.headers
        assert not {"Access-Control-Allow-Origin", "Server"} & set(response.headers)
        await error_of(response)


async def test_the_methods_of_a_path_are_those_of_the_first_that_matches(world):
    """/v1/responses/{id} matches too, with other methods."""
    await world.start()
    async with world.client.options(world.url + "/v1/responses/input_tokens") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
        assert (await error_of(response))["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[1]", "model"),
        (b'"m"', "model"),
        (b"{}", "model"),
        (b'{"model": 1}', "model"),
        (b'{"model": "m", "stream": "yes"}', "stream"),
        (b'{"model": "\xff"}', None),
        (b'{"model": "m", "x": ' + b"[" * 100_000, None),
    ],
)
async def test_a_malformed_body(world, body, param):
    await world.start()
    world.has()
    async with world.client.post(world.url + CHAT, data=body, headers={"Content-Type": "application/json"}) as response:
        assert response.status == 400
        assert (await error_of(response))["param"] == param


async def test_content_types(world):
    await world.start()
    pod = await world.pod()
    world.has(pod.endpoint())
    body = json.dumps({"model": "m"}).encode()
    for kind, status in (("text/plain", 415), ("application/json; charset=utf-8", 200)):
        async with world.client.post(world.url + CHAT, data=body, headers={"Content-Type": kind}) as response:
            assert response.status == status
    packed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with world.client.post(world.url + CHAT, data=body, headers=packed) as response:
        assert response.status in {400, 415}


async def test_bodies_are_bounded_also_without_a_length(world):
    await world.start()
    world.has()

    async def endless():
        yield b'{"model": "'
        for _ in range(9):
            yield b"a" * 1024 * 1024

    headers = {"Content-Type": "application/json"}
    async with world.client.post(world.url + CHAT, data=endless(), headers=headers) as response:
        assert response.status == 413
        await error_of(response)


async def raw(url: str, request: bytes) -> bytes:
    """What the server sends until it closes."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(request)
    answer = b""
    async with asyncio.timeout(30):
        while chunk := await reader.read(65536):
            answer += chunk
    writer.close()
    return answer


BODY = b'{"model": "m"}'
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        HEAD + b"Content-Length: 14\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 14\r\n\r\n" + BODY,
        HEAD + b"Content-Length: 14\r\nContent-Length: 15\r\n\r\n" + BODY,
        HEAD + b"Content-Length: +14\r\n\r\n" + BODY,
        HEAD + b"Content-Length : 14\r\n\r\n" + BODY,
        HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        HEAD + b"X-A: b\r\n folded\r\nContent-Length: 14\r\n\r\n" + BODY,
        HEAD + b"X-A: b\x00c\r\nContent-Length: 14\r\n\r\n" + BODY,
        HEAD.replace(b"POST /v1", b"POST http://h/v1") + b"Content-Length: 14\r\nConnection: close\r\n\r\n" + BODY,
        HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 14\n\n" + BODY,
        HEAD + b"X-A: b\nContent-Length: 14\r\n\r\n" + BODY,
    ],
    ids=[
        "cl-te",
        "te-cl",
        "two-cl",
        "plus-cl",
        "space-colon",
        "te-identity",
        "fold",
        "nul",
        "absolute",
        "bare-lf",
        "bare-lf-inside",
    ],
)
async def test_ambiguous_requests_are_refused_and_never_forwarded(world, request_bytes):
    await world.start()
    pod = await world.pod()
    world.has(pod.endpoint())
    answer = await raw(world.url, request_bytes)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
    assert not pod.seen


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# people\nalpha\n\nbeta\n")
    return path


async def test_keys(world, key_file):
    await world.start(keys=KeyFile(key_file))
    pod = await world.pod()
    world.has(pod.endpoint())
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "alpha"}, 401),
        ({"Authorization": "Bearer # people"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Bearer alpha"}, 200),
        ({"authorization": "bearer beta"}, 200),
        ({"x-api-key": "beta"}, 200),
    ):
        async with world.post(headers=headers) as response:
            assert response.status == status, headers


async def test_every_route_but_health_and_the_files_of_the_page_asks_for_the_key(world, key_file):
    await world.start(keys=KeyFile(key_file))
    routes = [(r.method, r.resource.canonical.replace("{id}", "m")) for r in world.api.app().router.routes()]
    for method, path in [*routes, ("GET", "/nope"), ("GET", "//livez"), ("GET", "/livez/")]:
        async with world.client.request(method, world.url + path) as response:
            assert (response.status == 401) == (path not in OPEN_PATHS | PAGE_PATHS), path


def test_keys_are_read_again_and_never_kept_in_clear(key_file):
    keys = KeyFile(key_file)
    assert keys.find("alpha", 0.0)
    key_file.write_text("gamma-longer\n")
    assert keys.find("alpha", 0.5)
    assert not keys.find("alpha", 2.0)
    assert keys.find("gamma-longer", 2.0)
    key_file.unlink()
    assert keys.find("gamma-longer", 4.0)
    assert "gamma" not in repr(vars(keys))


def test_an_empty_key_file_lets_nobody_in(tmp_path):
    path = tmp_path / "keys"
    path.write_text("\n")
    assert not KeyFile(path).find("", 0.0)


async def test_health(world):
    await world.start()
    for status, synced, draining in ((200, True, False), (503, False, False), (503, True, True)):
        world.status.synced, world.status.draining = synced, draining
        async with world.client.get(world.url + "/readyz") as response:
            assert response.status == status
        async with world.client.get(world.url + "/livez") as response:
            assert response.status == 200


async def test_metrics_tell_what_happened_without_user_text(world):
    await world.start()
    pod = await world.pod()
    world.has(pod.endpoint())
    for model in ("m", "alias", "made-up-by-a-user"):
        (await world.post({"model": model})).release()
    async with world.client.get(world.admin_url + "/metrics") as response:
        text = await response.text()
    assert 'octavo_gateway_requests_total{code="200",model="m",route="/v1/chat/completions"} 2.0' in text
    assert 'octavo_gateway_requests_total{code="404",model="unknown",route="/v1/chat/completions"} 1.0' in text
    assert 'octavo_gateway_upstream_endpoints{model="m",state="accepting"} 1.0' in text
    assert "octavo_gateway_overhead_seconds_count 2.0" in text
    assert "made-up" not in text


async def test_the_report_lists_nothing_before_the_first_table(world):
    """An operator must not take an empty gateway for one that holds."""
    await world.start()
    world.has()
    world.status.synced = False
    async with world.client.get(world.admin_url + "/v1/octavo/load") as response:
        assert (await response.json())["models"] == []


async def test_every_metric_of_the_reference_is_there(world):
    await world.start()
    world.has((await world.pod()).endpoint())
    async with world.post() as response:
        assert response.status == 200
    text = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()
    documented = set(re.findall(r"^\| `(octavo_gateway_\w+)`", text, re.MULTILINE))
    exposed = set(re.findall(r"^# TYPE (\w+)", world.metrics.exposition().decode(), re.MULTILINE))
    assert len(documented) > 15
    assert documented <= exposed | {f"{name}_total" for name in exposed}
