"""Ask every pod for its load report, about once a second."""

from __future__ import annotations

import asyncio
import logging

import aiohttp
import msgspec

from octavo_gateway.pool.model_pool import ModelPool
from octavo_gateway.pool.registry import ModelRegistry
from octavo_gateway.pool.replica import Replica
from octavo_protocol.load import decode_load
from octavo_protocol.names import PATH_LOAD, QUERY_CACHE_AFTER

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
TICK_SECONDS = 0.1
TIMEOUT = aiohttp.ClientTimeout(total=0.9)
CONCURRENCY = 64
# All keys of a cache of 190,000 blocks.
MAX_REPORT = 2 * 1024 * 1024


async def poll(fleet: ModelRegistry, session: aiohttp.ClientSession) -> None:
    """Keep all reports fresh, for ever. A new pod is asked at once; held requests are looked at in the same rhythm."""
    slots = asyncio.Semaphore(CONCURRENCY)
    async with asyncio.TaskGroup() as tasks:
        while True:
            for backend, upstream in fleet.upstreams():
                if _wanted(upstream) and backend.clock() - upstream.asked_at >= INTERVAL_SECONDS:
                    upstream.waiting = True
                    tasks.create_task(_ask(backend, upstream, session, slots))
            for backend in fleet.backends():
                backend.pump()
            await asyncio.sleep(TICK_SECONDS)


def _wanted(upstream: Replica) -> bool:
    return bool(upstream.endpoint.admin_url) and upstream.endpoint.ready and not upstream.waiting


async def _ask(backend: ModelPool, upstream: Replica, session: aiohttp.ClientSession, slots: asyncio.Semaphore) -> None:
    """Get one pod's report; whatever it makes go wrong here, the other pods are asked on."""
    try:
        await _hear(backend, upstream, session, slots)
    except Exception as error:  # noqa: BLE001 (whatever it is, the others count)
        backend.complain(upstream, "unexpected", f"taking its load report failed: {error!r}", error)


async def _hear(
    backend: ModelPool, upstream: Replica, session: aiohttp.ClientSession, slots: asyncio.Semaphore
) -> None:
    """Take one pod's report. One that does not come is no error: the last one ages and is left out of the choice."""
    try:
        async with slots:
            upstream.asked(backend.clock())
            after = backend.index.sequence(upstream.endpoint.url)
            query = {QUERY_CACHE_AFTER: str(after)} if upstream.tells_cache else {}
            data = await _read(session, upstream.endpoint.admin_url + PATH_LOAD, query)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        log.debug("no load report from %s: %r", upstream.endpoint.name, error)
        return
    finally:
        upstream.waiting = False
    # The pod may be gone, and another have its address.
    if data is None or backend.upstreams.get(upstream.endpoint.url) is not upstream:
        return
    if len(data) > MAX_REPORT:
        backend.disbelieve(upstream, "size", f"its load report is longer than {MAX_REPORT} bytes")
        # Perhaps its cache is that large. Its load is still worth knowing: asked for at once, without the cache.
        if upstream.tells_cache:
            upstream.tells_cache = False
            upstream.asked_at = float("-inf")
        return
    try:
        report = decode_load(data)
    except msgspec.MsgspecError as error:
        backend.disbelieve(upstream, "malformed", f"its load report is malformed: {error}")
        return
    backend.reported(upstream, report, after)


async def _read(session: aiohttp.ClientSession, url: str, query: dict[str, str]) -> bytes | None:
    """The answer, or as much of it as shows that it is too long; None when there is no report."""
    async with session.get(url, params=query, timeout=TIMEOUT) as response:
        if response.status != 200:
            return None
        data = bytearray()
        async for chunk in response.content.iter_any():
            data += chunk
            if len(data) > MAX_REPORT:
                break
        return bytes(data)
