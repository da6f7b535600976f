"""Assembles the gateway, serves, and drains on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import aiohttp
from aiohttp import web

from octavo_gateway.access.control import AccessControl
from octavo_gateway.access.key_file import KeyFile
from octavo_gateway.access.limit_gossip import LimitGossip
from octavo_gateway.api.errors import ApiError
from octavo_gateway.app import load_poller
from octavo_gateway.app.peer_client import PeerClient
from octavo_gateway.app.wake import Waker
from octavo_gateway.discovery.endpoints import ModelTable
from octavo_gateway.http.connection import listen
from octavo_gateway.http.forwarding import Forwarding
from octavo_gateway.http.proxy import Proxy
from octavo_gateway.http.response_finder import ResponseFinder
from octavo_gateway.http.server import Admin, Api, HealthEndpoints
from octavo_gateway.metrics import GatewayMetrics
from octavo_gateway.pool.registry import ModelRegistry
from octavo_gateway.pool.stored_responses import StoredResponses
from octavo_gateway.queueing.hold_queue import Bounds

log = logging.getLogger(__name__)

# Below the five seconds after which uvicorn closes an idle connection: a request must not use a closing connection.
REPLICA_IDLE_SECONDS = 3.0
CONNECT_SECONDS = 2.0
# Seconds for open requests after the drain; the remaining ones are cancelled.
SHUTDOWN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Options from the command line. `static` None: Kubernetes; `namespaces` None: all, empty: the pod's own.

    `worker` is None for a gateway of one process.
    """

    host: str
    port: int
    admin_host: str
    admin_port: int
    static: ModelTable | None
    namespaces: tuple[str, ...] | None
    kubeconfig: Path | None
    keys: KeyFile | None
    bounds: Bounds
    operator: tuple[str, int] | None
    peers: tuple[tuple[str, int], ...]
    head_seconds: float
    body_seconds: float
    worker: int | None
    page: bool
    drain_delay: float
    drain_timeout: float
    random: Callable[[], float]


async def run(options: GatewayOptions) -> int:
    """Serve until SIGTERM or SIGINT, then drain; returns the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    status = HealthEndpoints(start_time=time.time())
    registry = ModelRegistry(options.bounds, time.monotonic, options.random, time.time)
    metrics = GatewayMetrics(registry)
    async with AsyncExitStack() as stack:
        forwarded = await stack.enter_async_context(replica_session())
        own = await stack.enter_async_context(replica_session())
        background = [asyncio.create_task(load_poller.poll(registry, own))]
        if options.operator:
            waker = Waker(registry, own, metrics, *options.operator, options.random)
            background.append(asyncio.create_task(waker.run()))
        background.append(asyncio.create_task(_tables(options, registry, status)))
        stack.push_async_callback(_cancel, background)
        access = AccessControl(options.keys, metrics, time.time, time.monotonic)
        gossip = LimitGossip(access.accounts, uuid4().hex)
        if options.peers:
            peers = PeerClient(gossip, own, options.peers, time.monotonic, metrics, registry.shared_by)
            # Serve only once the remainder of the limits is known.
            await peers.round()
            background.append(asyncio.create_task(peers.run()))
        proxy = Proxy(forwarded, metrics, options.bounds.seconds)
        finder = ResponseFinder(own, StoredResponses())
        forwarding = Forwarding(registry, proxy, metrics, access, finder, options.body_seconds)
        api = Api(registry, forwarding, metrics, status, access, options.page)
        shared = options.worker is not None
        if shared:
            await stack.enter_async_context(_end_with_parent(stop))
            # Other workers already accept on this port: one without a model table must not answer their clients.
            if await _until(background, stop, status.ready):
                return 1
        bound = options.head_seconds
        # Start it before the public port: once that accepts connections, health and metrics are reachable too.
        admin = Admin(registry, metrics, status, lambda: gossip.message(time.monotonic()))
        await _serve(stack, admin.app(), options.admin_host, options.admin_port, metrics, bound)
        public = await _serve(stack, api.app(), options.host, options.port, metrics, bound, reuse_port=shared)
        log.info("serving on %s:%d, second port %d", options.host, options.port, options.admin_port)
        failed = await _until(background, stop)
        if failed:
            return 1
        await _drain(options, registry, status, public)
    log.info("stopped")
    return 0


@asynccontextmanager
async def replica_session() -> AsyncIterator[aiohttp.ClientSession]:
    """A client session for pods: no connection limit, no proxies, no cookies; TCP keep-alive detects dead peers."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=REPLICA_IDLE_SECONDS, socket_factory=_socket)
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    ) as session:
        yield session


def _socket(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A pod on a lost node sends nothing, not even a reset: the connection fails after 15 + 3 x 5 s.
    for option, value in ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


async def _tables(options: GatewayOptions, registry: ModelRegistry, status: HealthEndpoints) -> None:
    """Keep the registry in step with the table of models and replicas."""

    def update(table: ModelTable) -> None:
        registry.update(table)
        status.synced = True
        status.ready.set()

    if options.static is not None:
        update(options.static)
        await asyncio.Event().wait()
    # This import takes seconds and a hundred megabytes, and a gateway without Kubernetes does not need it.
    from octavo_gateway.discovery import kube_watch  # noqa: PLC0415

    namespaces = options.namespaces
    if namespaces == ():
        namespaces = (kube_watch.own_namespace(),)
    async with kube_watch.connect(options.kubeconfig) as api:
        await kube_watch.Watcher(api, namespaces, options.random).run(update)


async def _serve(
    stack: AsyncExitStack,
    app: web.Application,
    host: str,
    port: int,
    metrics: GatewayMetrics,
    head_seconds: float,
    *,
    reuse_port: bool = False,
) -> asyncio.Server:
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    return await listen(runner, host, port, metrics.malformed.inc, head_seconds=head_seconds, reuse_port=reuse_port)


@asynccontextmanager
async def _end_with_parent(stop: asyncio.Event) -> AsyncIterator[None]:
    """Stop when standard input ends: only the parent process holds its other end."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    watch = asyncio.create_task(reader.read())
    watch.add_done_callback(lambda _: stop.set())
    try:
        yield
    finally:
        watch.cancel()
        transport.close()


async def _until(background: list[asyncio.Task[None]], *events: asyncio.Event) -> bool:
    """Wait for one of the events; True if a background task failed first."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    done, _ = await asyncio.wait([*waiting, *background], return_when=asyncio.FIRST_COMPLETED)
    for event in waiting:
        event.cancel()
    for task in done:
        if task in background:
            log.error("fatal error: %r", task.exception())
            return True
    return False


async def _drain(
    options: GatewayOptions, registry: ModelRegistry, status: HealthEndpoints, public: asyncio.Server
) -> None:
    """Fail the readiness probe, accept requests for the drain delay, then let running answers finish."""
    status.draining = True
    log.info("draining: %d requests in flight", status.requests)
    await asyncio.sleep(options.drain_delay)
    public.close()
    if status.requests:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(status.idle.wait(), options.drain_timeout)
    for pool in registry.pools():
        pool.fail_held(ApiError(503, "the gateway is shutting down", code="shutting_down", retry_after=1))
    if status.requests:
        log.warning("%d requests did not finish within the drain timeout", status.requests)


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
