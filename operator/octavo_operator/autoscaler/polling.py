"""Asking pods and gateways for their load: many at the same time, and who does not answer holds up nobody."""

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

# Gateways come and go rarely, and are looked up by a list call.
GATEWAYS_SECONDS = 10.0
# One report of each gateway is about all resources: those who ask within this time share it.
_GATEWAYS_SHARED_SECONDS = 0.5
# The first report that does not come is noise; from the second on it is asked for ever more rarely.
_FIRST_DELAY = 2.0
LONGEST_DELAY = 10.0
# Each silent pod takes a place for as long as the HTTP client waits.
_PARALLEL = 64
_PARALLEL_SILENT = 32

Fetch = Callable[[str], Awaitable[bytes]]
ListGateways = Callable[[], Awaitable[dict[str, str]]]
Reports = dict[str, tuple[float, LoadReport]]


class LatestReports:
    """What pods and gateways said last.

    `fetch` gets a URL's body and raises OSError or TimeoutError; `list_gateways` lists the gateway pods' addresses by
    name; `clock` is Unix time, `timer` seconds that never go back.
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
        self._listed_at = self._asked_at = float("-inf")
        self._asking = asyncio.Lock()
        self._slots = asyncio.Semaphore(_PARALLEL)
        self._slots_silent = asyncio.Semaphore(_PARALLEL_SILENT)
        # By address: how often in a row it did not answer, and when to ask again.
        self._silent: dict[str, tuple[int, float]] = {}
        self._background: set[asyncio.Task[None]] = set()

    @property
    def gateways(self) -> Iterable[GatewayReplica]:
        """All gateways, with what they said last."""
        return self._gateways.values()

    async def sample(self, pods: Iterable[Pod], reports: Reports) -> None:
        """Put what `pods` say into `reports`, and have what the gateways say.

        Waits for those that answered the last time. The others are asked too, when it is their turn, and their answer
        is there the next time.
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
        """Wait for those that were not waited for."""
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
            logger.warning("load report of pod %s: %s", pod.name, error)

    async def _sample_gateways(self) -> None:
        async with self._asking:
            now = self._timer()
            if now - self._asked_at < _GATEWAYS_SHARED_SECONDS:
                return
            self._asked_at = now
            if now - self._listed_at >= GATEWAYS_SECONDS:
                self._listed_at = now
                await self._find_gateways()
                self._silent = {ip: kept for ip, kept in self._silent.items() if kept[1] > now - 60}
            await asyncio.gather(*(self._sample_gateway(gateway) for gateway in self._gateways.values()))

    async def _find_gateways(self) -> None:
        try:
            addresses = await self._list_gateways()
        except OSError as error:
            logger.warning("gateways cannot be listed: %s", error)
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
                logger.warning("report of gateway %s: %s", gateway.name, error)
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
