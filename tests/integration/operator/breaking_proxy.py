"""An HTTP proxy between the operator and the API server that breaks what a test tells it to break."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import aiohttp
from aiohttp import web

Pass = Callable[[web.Request], Awaitable[web.StreamResponse]]
Fault = Callable[[web.Request, Pass], Awaitable[web.StreamResponse]]
_DROPPED = ("Host", "Transfer-Encoding", "Content-Length", "Content-Encoding", "Accept-Encoding", "Connection")
_STEP = 65536


class Upstream(Protocol):
    """Where the API server is."""

    server: str
    ca: Any


@dataclass(slots=True)
class Call:
    """One request that came to the proxy. `at` and `done` count seconds on this machine's monotonic clock.

    `done` is when the API server had answered; infinite when no answer came or it was never asked.
    """

    method: str
    path: str
    watch: bool
    at: float
    status: int = 0
    done: float = float("inf")


_CALL = web.RequestKey("call", Call)


@dataclass
class BreakingProxy:
    """One proxy. `fault` answers, or passes on, every request; None passes all."""

    upstream: Upstream
    port: int
    fault: Fault | None = None
    calls: list[Call] = field(default_factory=list)
    _runner: web.AppRunner | None = None
    _session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        """What a kubeconfig names as the server."""
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        """Listen (again)."""
        application = web.Application(client_max_size=1 << 24)
        application.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def refuse(self) -> None:
        """Cut all connections and listen no more."""
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        context = ssl.create_default_context(cafile=str(self.upstream.ca))
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()
        assert self._session is not None
        await self._session.close()

    async def cut(self) -> None:
        """Cut all connections; new ones are welcome."""
        await self.refuse()
        await self.open()

    @asynccontextmanager
    async def broken(self, fault: Fault) -> AsyncIterator[None]:
        """All connections are cut, and what comes then meets `fault` until the block ends."""
        self.fault = fault
        await self.cut()
        try:
            yield
        finally:
            self.fault = None

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        call = Call(request.method, request.path, "watch" in request.query, time.monotonic())
        self.calls.append(call)
        request[_CALL] = call
        answer = await (self.fault(request, self._pass) if self.fault else self._pass(request))
        call.status = answer.status
        return answer

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        async with self.asked(request) as answer:
            response = web.StreamResponse(status=answer.status, headers=kept(answer.headers))
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            request[_CALL].done = time.monotonic()
            await response.write_eof()
            return response

    @asynccontextmanager
    async def asked(self, request: web.Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """The API server's answer."""
        assert self._session is not None
        url = self.upstream.server + request.path_qs
        timeout = aiohttp.ClientTimeout(total=None)
        body = await request.read() or None
        async with self._session.request(
            request.method, url, headers=kept(request.headers), data=body, timeout=timeout
        ) as answer:
            yield answer


def kept(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.title() not in _DROPPED}


def cut_off(request: web.Request) -> None:
    """Reset the connection under the answer."""
    if request.transport is not None:
        request.transport.abort()


def status(code: int, **headers: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "broken on purpose", "code": code}
    return web.json_response(body, status=code, headers={k.replace("_", "-"): v for k, v in headers.items()})


def only(which: Callable[[web.Request], bool], fault: Fault) -> Fault:
    """`fault` for some requests."""

    async def some(request: web.Request, proceed: Pass) -> web.StreamResponse:
        return await (fault(request, proceed) if which(request) else proceed(request))

    return some


def is_watch(request: web.Request) -> bool:
    return "watch" in request.query


def no_lease(request: web.Request) -> bool:
    return "/leases" not in request.path


def answers(code: int, **headers: str) -> Fault:
    """Every request gets this status."""

    async def fault(_: web.Request, __: Pass) -> web.StreamResponse:
        return status(code, **headers)

    return fault


def says(*lines: str, then_hang: bool = False) -> Fault:
    """A watch is accepted, says this, and ends (or hangs)."""

    async def fault(request: web.Request, _: Pass) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for line in lines:
            await response.write(line.encode())
        if then_hang:
            await asyncio.Event().wait()
        return response

    return fault


def event(kind: str, /, **body: Any) -> str:
    return json.dumps({"type": kind, "object": body}) + "\n"


async def half_open(_: web.Request, __: Pass) -> web.StreamResponse:
    """Accepts, and never answers."""
    await asyncio.Event().wait()
    raise AssertionError


async def reset(request: web.Request, _: Pass) -> web.StreamResponse:
    """Resets the connection instead of an answer."""
    cut_off(request)
    return web.Response()


def bent(proxy: BreakingProxy, bend: Callable[[web.Request, web.StreamResponse, bytes], Awaitable[bool]]) -> Fault:
    """Passes a watch's lines on through `bend`, until that says it is enough; as they are once the fault is over."""

    async def fault(request: web.Request, _: Pass) -> web.StreamResponse:
        fault_of_all = proxy.fault
        async with proxy.asked(request) as answer:
            response = web.StreamResponse(status=answer.status, headers=kept(answer.headers))
            await response.prepare(request)
            async for line in lines_of(answer):
                if proxy.fault is not fault_of_all:
                    await response.write(line)
                elif not await bend(request, response, line):
                    break
            return response

    return fault


async def lines_of(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in answer.content.iter_chunked(_STEP):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line + b"\n"


async def in_the_middle(request: web.Request, response: web.StreamResponse, line: bytes) -> bool:
    """Half an event, then a reset."""
    await response.write(line[: len(line) // 2])
    cut_off(request)
    return False


async def half_a_line(_: web.Request, response: web.StreamResponse, line: bytes) -> bool:
    """Half an event, then an orderly end."""
    await response.write(line[: len(line) // 2])
    return False


async def by_drops(_: web.Request, response: web.StreamResponse, line: bytes) -> bool:
    """A few bytes at a time."""
    for at in range(0, len(line), 256):
        await response.write(line[at : at + 256])
        await asyncio.sleep(0.02)
    return True


async def twice(_: web.Request, response: web.StreamResponse, line: bytes) -> bool:
    """Every event comes two times."""
    await response.write(line + line)
    return True


async def backwards(_: web.Request, response: web.StreamResponse, line: bytes) -> bool:
    """After every event an old one: with the first resourceVersion there ever was, and as a deletion."""
    found = json.loads(line)
    if found["type"] in ("ADDED", "MODIFIED"):
        old = {**found["object"], "metadata": {**found["object"]["metadata"], "resourceVersion": "1"}}
        await response.write(line + event("DELETED", **old).encode() + event("MODIFIED", **old).encode())
    else:
        await response.write(line)
    return True
