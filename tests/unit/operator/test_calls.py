"""Calls to the API server without one: what is waited for, what counts as done, and from when a lease counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import ApiClient, Configuration

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.app.leader import LeaseLock, Timing
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import NotFoundError, RefusedError, TransientError
from octavo_operator.kube.resources import PODS
from octavo_operator.reconcile.execute import execute
from octavo_operator.reconcile.plan import Apply

Json = dict[str, Any]


@contextlib.asynccontextmanager
async def api_server(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[KubeClient]:
    """A client of a server that answers every call so."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as server:
        configuration = Configuration()
        configuration.host = str(server.make_url("")).rstrip("/")
        client = KubeClient(ApiClient(configuration=configuration))
        yield client
        await client.close()


async def test_no_call_is_made_while_the_server_asks_to_be_left_alone() -> None:
    calls = []

    async def busy(request: web.Request) -> web.Response:
        calls.append(request.path)
        return web.json_response({"message": "busy"}, status=429, headers={"Retry-After": "30"})

    async with api_server(busy) as client:
        with pytest.raises(TransientError, match="busy"):
            await client.get(PODS, "a", "one")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.get(PODS, "a", "two")
    assert len(calls) == 1


async def test_a_list_is_read_to_its_last_page() -> None:
    async def page(request: web.Request) -> web.Response:
        nth = int(request.query.get("continue", "0"))
        metadata = {"continue": str(nth + 1)} if nth < 2 else {}
        return web.json_response({"metadata": metadata, "items": [{"metadata": {"name": f"{nth}"}}]})

    async with api_server(page) as client:
        assert [item["metadata"]["name"] for item in await client.list(PODS, "a")] == ["0", "1", "2"]


async def test_a_deletion_names_the_object_by_uid_and_another_one_is_left_alone() -> None:
    bodies = []

    async def conflict(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response({"message": "the UID in the precondition does not match"}, status=409)

    async with api_server(conflict) as client:
        await client.delete(PODS, "a", "one", "uid-1")
    assert [body["preconditions"] for body in bodies] == [{"uid": "uid-1"}]


class Refusing:
    """Refuses to apply; `merge` finds nothing."""

    async def apply(self, *_: object) -> None:
        raise RefusedError(422, "spec.ports[1].name: Duplicate value")

    async def merge(self, *_: object) -> None:
        raise NotFoundError(404, "no such Service")


async def test_an_apply_that_is_refused_for_good_fails_the_pass(make_owner: Callable[..., LLMDeployment]) -> None:
    body: Json = {"kind": "Service", "metadata": {"name": "m"}}
    with pytest.raises(RefusedError, match="Duplicate value"):
        await execute(Refusing(), make_owner(), [Apply(body)])  # type: ignore[arg-type]


class Slow:
    """A Lease that is made in 3 s."""

    now = 100.0

    async def get(self, *_: object) -> None:
        return None

    async def create(self, _: object, body: Json) -> Json:
        self.now += 3.0
        return body


async def test_a_lease_counts_from_before_the_write() -> None:
    server = Slow()
    lock = LeaseLock(server, "a", "operator", "me", lambda: server.now, Timing(15.0, 10.0, 2.0))  # type: ignore[arg-type]
    assert lock.left() <= 0
    await lock.acquire()
    assert lock.left() == 7.0, "10 s from when it was asked for; others count 15 s from when they see it"
