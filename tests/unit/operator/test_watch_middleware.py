"""What kopf hears of an API server: whole events, and of whatever else only that it has to list again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from octavo_operator.app.watch_health import WatchHealth
from octavo_operator.app.watch_middleware import watch_middleware

ADDED = b'{"type":"ADDED","object":{"kind":"Pod","metadata":{"name":"x"}}}\n'
GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
Ask = Callable[..., AbstractAsyncContextManager[aiohttp.ClientResponse]]


class Log(WatchHealth):
    """A WatchHealth that asks for no pause, and remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__(1, lambda: None, lambda: None)
        self.asked: list[tuple[str, bool]] = []
        self.lists: list[str] = []
        self.gone: list[str] = []

    def pause(self, path: str, *, watch: bool) -> float:
        self.asked.append((path, watch))
        return 0.0

    def read(self, path: str) -> None:
        self.lists.append(path)

    def undefined(self, path: str) -> None:
        self.gone.append(path)


@pytest.fixture
def health() -> Log:
    return Log()


@pytest.fixture
async def ask(health: Log) -> AsyncIterator[Ask]:
    """Asks a server that answers what the test says."""

    @asynccontextmanager
    async def send(path: str, status: int, body: bytes = b"") -> AsyncIterator[aiohttp.ClientResponse]:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(status=status, body=body)

        application = web.Application()
        application.router.add_get("/{path:.*}", answer)
        async with (
            TestServer(application) as server,
            aiohttp.ClientSession(middlewares=[watch_middleware({"pods"}, health)]) as session,
            session.get(server.make_url(path)) as response,
        ):
            yield response

    return send


async def heard(response: aiohttp.ClientResponse) -> list[Any]:
    text = b"".join([piece async for piece in response.content.iter_chunked(1 << 20)])
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (ADDED * 3, [json.loads(ADDED)] * 3),
        (ADDED + ADDED[:20], [json.loads(ADDED)]),
        (b"", []),
        (ADDED + b'{"type":"ERROR","object":{"code":500}}\n', [json.loads(ADDED), GONE]),
        (b'{"type": "ERROR", "object": {"code": 504}}\n', [GONE]),
        (b"<html>hello</html>\n", [GONE]),
    ],
)
async def test_a_watch_says_whole_events_or_that_it_is_over(body: bytes, events: list[Any], ask: Ask) -> None:
    async with ask("/api/v1/pods?watch=true", 200, body) as response:
        assert await heard(response) == events


@pytest.mark.parametrize("status", [400, 404, 410, 422])
async def test_what_refuses_a_watch_asks_for_a_list(status: int, ask: Ask) -> None:
    async with ask("/api/v1/pods?watch=true", status, b"{}") as response:
        assert response.status == 200
        assert await heard(response) == [GONE]


@pytest.mark.parametrize("status", [400, 404, 410, 422])
async def test_what_refuses_a_list_asks_for_it_from_the_start(status: int, ask: Ask) -> None:
    # kopf would ask for the same page for ever if the connection had been lost.
    with pytest.raises(aiohttp.ClientPayloadError, match=str(status)):
        async with ask("/api/v1/pods?continue=token", status):
            pytest.fail("there is no answer")


@pytest.mark.parametrize(("status", "gone"), [(404, ["/api/v1/pods"]), (410, []), (422, [])])
async def test_a_list_of_what_is_not_defined_is_told_of(status: int, gone: list[str], ask: Ask, health: Log) -> None:
    with pytest.raises(aiohttp.ClientPayloadError):
        async with ask("/api/v1/pods", status):
            pytest.fail("there is no answer")
    assert health.gone == gone


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_what_kopf_knows_how_to_take_it_gets(status: int, ask: Ask) -> None:
    async with ask("/api/v1/pods?watch=true", status) as response:
        assert response.status == status


async def test_the_pages_of_a_list_are_one_question(ask: Ask, health: Log) -> None:
    for query in ("limit=100", "limit=100&continue=a", "limit=100&continue=b"):
        async with ask(f"/api/v1/pods?{query}", 200, b"{}"):
            pass
    assert health.asked == [("/api/v1/pods", False)]
    assert health.lists == ["/api/v1/pods"]


async def test_other_questions_are_nobodys_business(ask: Ask, health: Log) -> None:
    async with ask("/api/v1", 404) as response:
        assert response.status == 404
    assert health.asked == []
