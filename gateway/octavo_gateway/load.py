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
TIMEOUT = aiohttp.ClientTimeout(total=0.9)
CONCURRENCY = 64
MAX_REPORT = 256 * 1024


async def poll(fleet: Fleet, session: aiohttp.ClientSession) -> None:
    """Keep all reports fresh, for ever. Held requests are looked at in the same rhythm."""
    slots = asyncio.Semaphore(CONCURRENCY)
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        await asyncio.gather(
            *(_ask(backend, upstream, session, slots) for backend, upstream in fleet.upstreams() if _wanted(upstream))
        )
        for backend in fleet.backends():
            backend.pump()
        await asyncio.sleep(max(0.0, INTERVAL_SECONDS - (loop.time() - began)))


def _wanted(upstream: Upstream) -> bool:
    return bool(upstream.endpoint.admin_url) and upstream.endpoint.ready


async def _ask(backend: Backend, upstream: Upstream, session: aiohttp.ClientSession, slots: asyncio.Semaphore) -> None:
    """Get one pod's report. One that does not come is no error: the last one ages and is left out of the choice."""
    async with slots:
        upstream.asked(backend.clock())
        try:
            async with session.get(upstream.endpoint.admin_url + PATH_LOAD, timeout=TIMEOUT) as response:
                if response.status != 200:
                    return
                data = await response.content.read(MAX_REPORT)
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
