"""A gateway on loopback with pods that do what a test tells them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from uuid import uuid4

import aiohttp
import pytest
from aiohttp import web

from octavo_gateway.access.control import AccessControl
from octavo_gateway.access.limit_gossip import LimitGossip
from octavo_gateway.app.run import replica_session
from octavo_gateway.discovery.endpoints import Deployment, Endpoint, table
from octavo_gateway.http.connection import listen
from octavo_gateway.http.forwarding import Forwarding
from octavo_gateway.http.proxy import Proxy
from octavo_gateway.http.response_finder import ResponseFinder
from octavo_gateway.http.server import Admin, Api, HealthEndpoints
from octavo_gateway.metrics import GatewayMetrics
from octavo_gateway.pool.model_pool import ModelPool
from octavo_gateway.pool.registry import ModelRegistry
from octavo_gateway.pool.stored_responses import StoredResponses
from octavo_gateway.queueing.hold_queue import Bounds

Behaviour = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]

EVENTS = [b'data: {"n": %d}\n\n' % n for n in range(3)] + [b"data: [DONE]\n\n"]


async def answer_plain(request: web.Request, body: bytes) -> web.StreamResponse:
    return web.json_response({"object": "chat.completion"}, headers={"X-Octavo-Secret": "1"})


def answer_stream(chunks, *, gate: asyncio.Event | None = None, cut: bool = False) -> Behaviour:
    """Stream `chunks`, the last one after `gate`; with `cut` break the connection instead of ending."""

    async def behave(request: web.Request, body: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for index, chunk in enumerate(chunks):
            if gate and index == len(chunks) - 1:
                await gate.wait()
            await response.write(chunk)
            await asyncio.sleep(0)
        if cut:
            request.transport.abort()
        return response

    return behave


@dataclass
class Pod:
    """A fake server pod: records requests, answers by `behave`."""

    url: str = ""
    behave: Behaviour = answer_plain
    seen: list[tuple[web.Request, bytes]] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append((request, body))
        try:
            return await self.behave(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.cancelled.set()
            raise

    def endpoint(self, *, ready: bool = True, name: str = "") -> Endpoint:
        return Endpoint(name or self.url, self.url, ready=ready)


class World:
    """A running gateway, its parts within reach, and its client."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.url = self.admin_url = ""
        self.registry: ModelRegistry
        self.metrics: GatewayMetrics
        self.status: HealthEndpoints
        self.api: Api
        self.client: aiohttp.ClientSession
        self.access: AccessControl
        self.gossip: LimitGossip
        self.admin: Admin
        self.now = 0.0

    def ticks(self) -> float:
        """The clock of limits: moved by tests."""
        return self.now

    async def serve(self, app: web.Application) -> str:
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        server = await listen(runner, "127.0.0.1", 0, lambda: None)
        self._stack.callback(server.close)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def pod(self, behave: Behaviour = answer_plain) -> Pod:
        pod = Pod(behave=behave)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", pod.handle)
        pod.url = await self.serve(app)
        return pod

    async def start(self, *, bounds: Bounds | None = None, grace: float = 2.0, keep_alive: float = 10.0, keys=None):
        bounds = bounds or Bounds()
        self.registry = ModelRegistry(bounds, time.time, random.Random(1).random)
        self.metrics = GatewayMetrics(self.registry)
        self.status = HealthEndpoints(start_time=1.0, synced=True)
        replica = await self._stack.enter_async_context(replica_session())
        proxy = Proxy(replica, self.metrics, bounds.seconds, grace=grace, keep_alive=keep_alive)
        self.access = AccessControl(keys, self.metrics, time.time, self.ticks)
        self.gossip = LimitGossip(self.access.accounts, uuid4().hex)
        finder = ResponseFinder(replica, StoredResponses())
        self.forwarding = Forwarding(self.registry, proxy, self.metrics, self.access, finder)
        self.api = Api(self.registry, self.forwarding, self.metrics, self.status, self.access)
        self.url = await self.serve(self.api.app())
        self.admin = Admin(self.registry, self.metrics, self.status, lambda: self.gossip.message(self.now))
        self.admin_url = await self.serve(self.admin.app())
        self.client = await self._stack.enter_async_context(aiohttp.ClientSession())

    def has(
        self,
        *endpoints: Endpoint,
        hold: bool = True,
        cold_start: float = 30.0,
        models=("m", "alias"),
        suspended: bool = False,
        stuck: str = "",
    ) -> ModelPool:
        deployment = Deployment("ns", "d", models, hold, cold_start, 7, endpoints, suspended=suspended, stuck=stuck)
        self.registry.update(table([deployment]))
        return self.registry.find(models[0]).pool

    def post(self, body=None, path="/v1/chat/completions", **arguments):
        body = {"model": "m", "messages": []} if body is None else body
        return self.client.post(self.url + path, json=body, **arguments)


@pytest.fixture
async def world():
    async with AsyncExitStack() as stack:
        yield World(stack)


@pytest.fixture
def streams():
    """`answer_stream`, for the tests of this folder."""
    return answer_stream
