"""Polls every replica for its load report, about once a second."""

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
# Bytes of a report with all keys of a cache of 190,000 blocks.
MAX_REPORT = 2 * 1024 * 1024


async def poll(registry: ModelRegistry, session: aiohttp.ClientSession) -> None:
    """Keep all reports fresh. A new replica is polled at once; each tick also dispatches held requests."""
    slots = asyncio.Semaphore(CONCURRENCY)
    async with asyncio.TaskGroup() as tasks:
        while True:
            for pool, replica in registry.replicas():
                if _wanted(replica) and pool.clock() - replica.asked_at >= INTERVAL_SECONDS:
                    replica.waiting = True
                    tasks.create_task(_ask(pool, replica, session, slots))
            for pool in registry.pools():
                pool.dispatch()
            await asyncio.sleep(TICK_SECONDS)


def _wanted(replica: Replica) -> bool:
    return bool(replica.endpoint.admin_url) and replica.endpoint.ready and not replica.waiting


async def _ask(pool: ModelPool, replica: Replica, session: aiohttp.ClientSession, slots: asyncio.Semaphore) -> None:
    """Get one replica's report; no failure stops the polling of the other replicas."""
    try:
        await _poll_one(pool, replica, session, slots)
    except Exception as error:  # noqa: BLE001 (whatever it is, the others count)
        pool.reports.reject(replica, "unexpected", f"taking its load report failed: {error!r}", error)


async def _poll_one(
    pool: ModelPool, replica: Replica, session: aiohttp.ClientSession, slots: asyncio.Semaphore
) -> None:
    """Take one report. A missing report is no error: the last one ages until routing ignores it."""
    try:
        async with slots:
            replica.asked(pool.clock())
            after = pool.router.index.sequence(replica.url)
            query = {QUERY_CACHE_AFTER: str(after)} if replica.tells_cache else {}
            data = await _read(session, replica.endpoint.admin_url + PATH_LOAD, query)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        log.debug("no load report from %s: %r", replica.endpoint.name, error)
        return
    finally:
        replica.waiting = False
    # The pod may be gone, and another pod may have its address.
    if data is None or pool.replicas.get(replica.url) is not replica:
        return
    if len(data) > MAX_REPORT:
        pool.reports.discard_report(replica, "size", f"its load report is longer than {MAX_REPORT} bytes")
        # Perhaps its cache is that large. Its load is still needed: poll again at once, without the cache.
        if replica.tells_cache:
            replica.tells_cache = False
            replica.asked_at = float("-inf")
        return
    try:
        report = decode_load(data)
    except msgspec.MsgspecError as error:
        pool.reports.discard_report(replica, "malformed", f"its load report is malformed: {error}")
        return
    pool.take_report(replica, report, after)


async def _read(session: aiohttp.ClientSession, url: str, query: dict[str, str]) -> bytes | None:
    """The body, cut off once it is longer than MAX_REPORT; None without a report."""
    async with session.get(url, params=query, timeout=TIMEOUT) as response:
        if response.status != 200:
            return None
        data = bytearray()
        async for chunk in response.content.iter_any():
            data += chunk
            if len(data) > MAX_REPORT:
                break
        return bytes(data)
