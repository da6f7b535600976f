"""Wakes deployments: notifies the operator of held requests for a deployment without a ready replica."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import aiohttp
import msgspec

from octavo_gateway.discovery.dns import Resolver
from octavo_gateway.discovery.endpoints import Key
from octavo_gateway.metrics import GatewayMetrics
from octavo_gateway.pool.model_pool import ModelPool
from octavo_gateway.pool.registry import ModelRegistry
from octavo_protocol.names import PATH_WAKE

log = logging.getLogger(__name__)

TIMEOUT = aiohttp.ClientTimeout(total=2.0)
TICK_SECONDS = 0.1
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
# Seconds to the next call. This gateway's report also lists held requests; the repetition only covers a lost leader.
ACCEPTED_PAUSE = 15.0


class Waker:
    """Calls the operator for every deployment that holds requests and has no accepting pod, until a call is accepted.

    It calls every replica of the operator in turn: a replica that is not the leader answers 421.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        session: aiohttp.ClientSession,
        metrics: GatewayMetrics,
        host: str,
        port: int,
        random: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._session = session
        self._metrics = metrics
        self._host = host
        self._port = port
        self._random = random
        self._resolver = Resolver()
        self._calls: dict[Key, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Watch for held requests until cancelled."""
        try:
            while True:
                for pool in self._registry.pools():
                    key = pool.deployment.key
                    if _needs_wake(pool) and key not in self._calls:
                        task = self._calls[key] = asyncio.create_task(self._until_accepted(pool))
                        task.add_done_callback(self._forget(key))
                await asyncio.sleep(TICK_SECONDS)
        finally:
            for task in tuple(self._calls.values()):
                task.cancel()

    def _forget(self, key: Key) -> Callable[[asyncio.Task[None]], None]:
        def forget(_: asyncio.Task[None]) -> None:
            self._calls.pop(key, None)

        return forget

    async def _until_accepted(self, pool: ModelPool) -> None:
        pause = FIRST_PAUSE
        while _needs_wake(pool):
            if await self._call(pool):
                await asyncio.sleep(ACCEPTED_PAUSE)
                continue
            await asyncio.sleep(pause * (0.5 + self._random()))
            pause = min(LONGEST_PAUSE, 2 * pause)

    async def _call(self, pool: ModelPool) -> bool:
        """Call every replica of the operator once; True if one accepted."""
        namespace, name = pool.deployment.key
        body = msgspec.json.encode({"namespace": namespace, "name": name})
        for address in await self._resolver.addresses(self._host, self._port):
            try:
                async with self._session.post(
                    f"http://{address}{PATH_WAKE}",
                    data=body,
                    headers={"Content-Type": "application/json"},
                    timeout=TIMEOUT,
                ) as response:
                    if response.status < 300:
                        self._metrics.wakes.labels("accepted").inc()
                        return True
                    if response.status != 421:
                        log.warning(
                            "operator %s answered %d to a wake of %s/%s", address, response.status, namespace, name
                        )
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                log.info("operator %s not reached: %r", address, error)
        self._metrics.wakes.labels("failed").inc()
        return False


def _needs_wake(pool: ModelPool) -> bool:
    return len(pool.queue) > 0 and not pool.available()
