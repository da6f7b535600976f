"""Runs several worker processes behind one port: each accepts by itself (SO_REUSEPORT), a parent restarts them.

The parent serves the second port for all workers. Worker number I also has its own second port, I + 1 above the
parent's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from octavo_gateway.app.worker_metrics import WorkerTotals
from octavo_gateway.http.connection import listen
from octavo_gateway.http.server import bounded
from octavo_protocol import load
from octavo_protocol.names import PATH_LOAD

log = logging.getLogger(__name__)

MOST = 32
POLL_SECONDS = 1.0
TIMEOUT = aiohttp.ClientTimeout(total=0.8)
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
# Seconds of running after which a worker's back-off is reset to the first pause.
WELL_SECONDS = 60.0


def worker_port(admin_port: int, worker: int) -> int:
    """The second port of a worker."""
    return admin_port + 1 + worker


@dataclass(slots=True, eq=False)
class _Worker:
    number: int
    process: Process | None = None
    up: bool = False


@dataclass(slots=True, eq=False)
class Parent:
    """Runs `count` workers: `command` with the worker's number appended. `host`: address of the second ports."""

    command: Sequence[str]
    count: int
    host: str
    admin_port: int
    head_seconds: float
    totals: WorkerTotals = field(default_factory=lambda: WorkerTotals(time.time()))
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _workers: list[_Worker] = field(default_factory=list)

    async def run(self) -> int:
        """Run until SIGTERM or SIGINT, then terminate the workers. The exit code is 0 if all workers returned 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        self._workers = [_Worker(number) for number in range(self.count)]
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(aiohttp.ClientSession(timeout=TIMEOUT))
            await stack.enter_async_context(self._served(session))
            kept = [asyncio.create_task(self._keep(worker)) for worker in self._workers]
            background = [asyncio.create_task(self._poll(session)), asyncio.create_task(self._pass_on())]
            codes = await asyncio.gather(*kept)
            for task in background:
                task.cancel()
        log.info("all workers have ended")
        return 1 if any(codes) else 0

    async def _keep(self, worker: _Worker) -> int:
        """Start one worker, and restart it when it ends; returns its last exit code."""
        pause = FIRST_PAUSE
        while True:
            began, worker.up = time.monotonic(), False
            ever = worker.process is not None
            # The worker ends when its standard input does: it must not outlive a killed parent.
            worker.process = await asyncio.create_subprocess_exec(
                *self.command, "--worker", str(worker.number), stdin=PIPE
            )
            if self._stop.is_set():
                worker.process.terminate()
            code = await worker.process.wait()
            self.totals.ended(worker.number)
            if self._stop.is_set():
                return code
            log.error("worker %d ended with code %d", worker.number, code)
            if not worker.up and not ever:
                # A worker that fails at its first start will fail again: end all workers, so that the error shows.
                self._stop.set()
                return code or 1
            pause = FIRST_PAUSE if time.monotonic() - began > WELL_SECONDS else min(LONGEST_PAUSE, 2 * pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause)
                return code

    async def _pass_on(self) -> None:
        await self._stop.wait()
        for worker in self._workers:
            if worker.process is not None and worker.process.returncode is None:
                worker.process.terminate()

    async def _poll(self, session: aiohttp.ClientSession) -> None:
        """Poll the workers every second: counts after the last poll are lost when a worker dies."""
        while True:
            await self._poll_all(session)
            await asyncio.sleep(POLL_SECONDS)

    async def _poll_all(self, session: aiohttp.ClientSession) -> None:
        await asyncio.gather(*(self._poll_one(worker, session) for worker in self._workers))

    async def _poll_one(self, worker: _Worker, session: aiohttp.ClientSession) -> None:
        process = worker.process
        host = reachable(self.host)
        url = f"http://{f'[{host}]' if ':' in host else host}:{worker_port(self.admin_port, worker.number)}"
        try:
            async with session.get(url + PATH_LOAD) as response:
                report = load.decode_gateway(await response.read())
            async with session.get(url + "/metrics") as response:
                exposition = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
            log.debug("worker %d not heard: %r", worker.number, error)
            return
        if process is worker.process and process is not None and process.returncode is None:
            worker.up = True
            self.totals.update(worker.number, report, exposition)

    @asynccontextmanager
    async def _served(self, session: aiohttp.ClientSession) -> AsyncIterator[None]:
        """Serve the second port."""

        async def report(_: web.Request) -> web.Response:
            await self._poll_all(session)
            return web.Response(body=load.encode(self.totals.report()), content_type="application/json")

        async def metrics(_: web.Request) -> web.Response:
            await self._poll_all(session)
            return web.Response(body=self.totals.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

        app = web.Application(middlewares=[bounded])
        app.router.add_get(PATH_LOAD, report)
        app.router.add_get("/metrics", metrics)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        server = await listen(runner, self.host, self.admin_port, lambda: None, head_seconds=self.head_seconds)
        try:
            yield
        finally:
            server.close()
            await runner.cleanup()


def reachable(host: str) -> str:
    """The address at which this host's second ports are reachable."""
    if host in {"0.0.0.0", "::", ""}:  # noqa: S104 (compared, not bound)
        return "127.0.0.1"
    return host
