"""Polls pods and gateways for their load: concurrently, and silent ones do not delay the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

import msgspec

from octavo_operator.autoscaler.observation import GatewayReplica
from octavo_operator.metrics.process import OperatorMetrics
from octavo_operator.observe.pods import Pod
from octavo_protocol import names
from octavo_protocol.load import GatewayReport, LoadReport, decode_gateway, decode_load

logger = logging.getLogger(__name__)

# Seconds between two list calls for the gateways, which change rarely.
GATEWAYS_SECONDS = 10.0
# A gateway's report covers all resources: samples within this many seconds share one.
_GATEWAYS_SHARED_SECONDS = 0.5
# The first failed poll is ignored; from the second on the delay doubles, up to LONGEST_DELAY.
_FIRST_DELAY = 2.0
LONGEST_DELAY = 10.0
# Concurrent polls. Silent pods have their own limit, as each occupies a slot until the HTTP client's timeout.
_PARALLEL = 64
_PARALLEL_SILENT = 32

Fetch = Callable[[str], Awaitable[bytes]]
ListGateways = Callable[[], Awaitable[dict[str, str]]]
Reports = dict[str, tuple[float, LoadReport]]


class LatestReports:
    """The latest reports of pods and gateways.

    `fetch` gets a URL's body and raises OSError or TimeoutError; `list_gateways` lists the gateway pods' addresses by
    name; `clock` is Unix time, `timer` monotonic seconds.
    """

    def __init__(
        self,
        fetch: Fetch,
        list_gateways: ListGateways,
        metrics: OperatorMetrics,
        clock: Callable[[], float],
        timer: Callable[[], float],
    ) -> None:
        self._timer = timer
        self._fetch = fetch
        self._list_gateways = list_gateways
        self._metrics = metrics
        self._clock = clock
        self._gateways: dict[str, GatewayReplica] = {}
        self._listed_at = self._polled_at = float("-inf")
        self._polling = asyncio.Lock()
        self._slots = asyncio.Semaphore(_PARALLEL)
        self._slots_silent = asyncio.Semaphore(_PARALLEL_SILENT)
        # By address: the number of consecutive failed polls, and the time of the next.
        self._silent: dict[str, tuple[int, float]] = {}
        self._background: set[asyncio.Task[None]] = set()

    @property
    def gateways(self) -> Iterable[GatewayReplica]:
        """All gateways, with their latest reports."""
        return self._gateways.values()

    async def sample(self, pods: Iterable[Pod], reports: Reports) -> None:
        """Poll `pods` into `reports`, and the gateways.

        Waits only for the pods whose last poll succeeded. The others are polled in the background when they are due;
        their reports are available to the next sample.
        """
        waited_for = []
        for pod in pods:
            silent = self._silent.get(pod.ip)
            if silent is None:
                waited_for.append(self._sample_pod(pod, reports, self._slots))
            elif silent[1] <= self._timer():
                self._silent[pod.ip] = (silent[0], float("inf"))
                task = asyncio.create_task(self._sample_pod(pod, reports, self._slots_silent))
                self._background.add(task)
                task.add_done_callback(self._background.discard)
        await asyncio.gather(self._sample_gateways(), *waited_for)

    async def finish(self) -> None:
        """Wait for the background polls."""
        await asyncio.gather(*self._background)

    async def _sample_pod(self, pod: Pod, reports: Reports, slots: asyncio.Semaphore) -> None:
        body = await self._get(pod.ip, slots)
        if body is None:
            misses = self._silent.get(pod.ip, (0, 0.0))[0]
            delay = min(_FIRST_DELAY * 2 ** min(misses, 10), LONGEST_DELAY) if misses else 0.0
            self._silent[pod.ip] = (misses + 1, self._timer() + delay)
            return
        self._silent.pop(pod.ip, None)
        try:
            reports[pod.name] = (self._clock(), decode_load(body))
        except msgspec.MsgspecError as error:
            logger.warning("invalid load report of pod %s: %s", pod.name, error)

    async def _sample_gateways(self) -> None:
        async with self._polling:
            now = self._timer()
            if now - self._polled_at < _GATEWAYS_SHARED_SECONDS:
                return
            self._polled_at = now
            if now - self._listed_at >= GATEWAYS_SECONDS:
                self._listed_at = now
                await self._find_gateways()
                self._silent = {ip: kept for ip, kept in self._silent.items() if kept[1] > now - 60}
            await asyncio.gather(*(self._sample_gateway(gateway) for gateway in self._gateways.values()))

    async def _find_gateways(self) -> None:
        try:
            addresses = await self._list_gateways()
        except OSError as error:
            logger.warning("cannot list gateways: %s", error)
            return
        known = self._gateways
        self._gateways = {name: replace(known.get(name, GatewayReplica(name)), ip=ip) for name, ip in addresses.items()}

    async def _sample_gateway(self, gateway: GatewayReplica) -> None:
        report: GatewayReport | None = None
        body = await self._get(gateway.ip, self._slots)
        if body is not None:
            try:
                report = decode_gateway(body)
            except msgspec.MsgspecError as error:
                logger.warning("invalid load report of gateway %s: %s", gateway.name, error)
        if gateway.name in self._gateways:
            self._gateways[gateway.name] = replace(gateway, report=report, sampled_at=self._clock())

    async def _get(self, ip: str, slots: asyncio.Semaphore) -> bytes | None:
        host = f"[{ip}]" if ":" in ip else ip
        async with slots:
            try:
                return await self._fetch(f"http://{host}:{names.PORT_ADMIN}{names.PATH_LOAD}")
            except (OSError, TimeoutError):
                self._metrics.missed_sample()
                return None
