"""Ask every pod for its load report, about once a second."""

from __future__ import annotations

import asyncio
import logging

import aiohttp
import msgspec

from octavo_gateway.fleet import Backend, Fleet, Upstream
from octavo_protocol.load import decode_load
from octavo_protocol.names import PATH_LOAD

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
TICK_SECONDS = 0.1
TIMEOUT = aiohttp.ClientTimeout(total=0.9)
CONCURRENCY = 64


async def poll(fleet: Fleet, session: aiohttp.ClientSession) -> None:
    """Keep all reports fresh, for ever. A new pod is asked at once; held requests are looked at in the same rhythm."""
    slots = asyncio.Semaphore(CONCURRENCY)
    async with asyncio.TaskGroup() as tasks:
        while True:
            for backend, upstream in fleet.upstreams():
                now = backend.clock()
                if _wanted(upstream) and now - upstream.asked_at >= INTERVAL_SECONDS:
                    upstream.asked(now)
                    tasks.create_task(_ask(backend, upstream, session, slots))
            for backend in fleet.backends():
                backend.pump()
            await asyncio.sleep(TICK_SECONDS)


def _wanted(upstream: Upstream) -> bool:
    return bool(upstream.endpoint.admin_url) and upstream.endpoint.ready


async def _ask(backend: Backend, upstream: Upstream, session: aiohttp.ClientSession, slots: asyncio.Semaphore) -> None:
    """Get one pod's report. One that does not come is no error: the last one ages and is left out of the choice."""
    async with slots:
        try:
            async with session.get(upstream.endpoint.admin_url + PATH_LOAD, timeout=TIMEOUT) as response:
                if response.status != 200:
                    return
                data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.debug("no load report from %s: %r", upstream.endpoint.name, error)
            return
    try:
        report = decode_load(data)
    except msgspec.MsgspecError as error:
        log.warning("load report of %s is malformed: %s", upstream.endpoint.name, error)
        return
    upstream.reported(report, backend.clock())
    backend.pump()
