"""The sampling loop: asks pods and gateways every two seconds, lets the policy decide, and enqueues what changed.

It writes nothing. What it knows is lost with the process: the child Deployment keeps the replicas, and a new leader
learns the rest within seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import msgspec

from octavo_operator.api.resource import Key, LLMDeployment
from octavo_operator.autoscale.observation import Gateway, observation, policy_settings, summary
from octavo_operator.autoscale.policy import decide
from octavo_operator.autoscale.types import State
from octavo_operator.metrics import Metrics
from octavo_operator.reconcile.pods import Pod
from octavo_operator.reconcile.status import LOAD_SECONDS
from octavo_operator.reconcile.view import Change, Load, Scaling
from octavo_protocol import names
from octavo_protocol.load import GatewayReport, LoadReport, decode_gateway, decode_load

logger = logging.getLogger(__name__)

TICK_SECONDS = 2.0
# Gateways come and go rarely, and are looked up by a list call.
GATEWAYS_SECONDS = 10.0
_CHANGES_KEPT = 10
_PARALLEL = 64

Fetch = Callable[[str], Awaitable[bytes]]
ListGateways = Callable[[], Awaitable[dict[str, str]]]


@dataclass(slots=True)
class Tracked:
    """One LLMDeployment under observation. `reports` are the last ones by pod, with the time they came."""

    owner: LLMDeployment
    pods: tuple[Pod, ...]
    replicas: int
    due: float = 0.0
    wake: bool = False
    state: State = field(default_factory=State)
    scaling: Scaling | None = None
    reports: dict[str, tuple[float, LoadReport]] = field(default_factory=dict)
    load: Load | None = None
    told: Load | None = None
    told_at: float = 0.0


class AutoscaleLoop:
    """Samples everything tracked until cancelled.

    `fetch` gets a URL's body and raises OSError or TimeoutError; `gateways` lists the gateway pods' addresses by name;
    `enqueue` has a key reconciled; `clock` is Unix time.
    """

    def __init__(
        self,
        fetch: Fetch,
        gateways: ListGateways,
        enqueue: Callable[[Key], None],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._fetch = fetch
        self._list_gateways = gateways
        self._enqueue = enqueue
        self._metrics = metrics
        self._clock = clock
        self._tracked: dict[Key, Tracked] = {}
        self._gateways: dict[str, Gateway] = {}
        self._gateways_at = float("-inf")
        self._kick = asyncio.Event()
        self._slots = asyncio.Semaphore(_PARALLEL)

    def load(self, key: Key) -> Load | None:
        """What the pods of `key` said last; None when none was asked yet."""
        tracked = self._tracked.get(key)
        return tracked.load if tracked else None

    def scaling(self, key: Key) -> Scaling | None:
        """The latest decision in mode Builtin; None when there was none yet."""
        tracked = self._tracked.get(key)
        return tracked.scaling if tracked else None

    def track(self, owner: LLMDeployment, pods: tuple[Pod, ...], replicas: int) -> None:
        """Go on with these pods; `replicas` is the Deployment's number now."""
        tracked = self._tracked.get(owner.key)
        if tracked is None or tracked.owner.uid != owner.uid:
            tracked = self._tracked[owner.key] = Tracked(owner, pods, replicas)
            self._kick.set()
        tracked.owner, tracked.pods, tracked.replicas = owner, pods, replicas
        present = {pod.name for pod in pods}
        tracked.reports = {name: report for name, report in tracked.reports.items() if name in present}
        if not _decides(owner):
            tracked.scaling, tracked.state = None, State()

    def forget(self, key: Key) -> None:
        """`key` is gone."""
        self._tracked.pop(key, None)

    def wake(self, key: Key) -> int | None:
        """A gateway holds a request for `key`: decide now. The replicas wanted so far, None when `key` is unknown."""
        tracked = self._tracked.get(key)
        if tracked is None:
            return None
        tracked.wake, tracked.due = True, 0.0
        self._kick.set()
        return tracked.replicas

    async def run(self) -> None:
        """Look at everything whenever it is due."""
        while True:
            await self.tick()
            now = self._clock()
            next_due = min((tracked.due for tracked in self._tracked.values()), default=now + TICK_SECONDS)
            try:
                async with asyncio.timeout(max(0.05, next_due - now)):
                    await self._kick.wait()
            except TimeoutError:
                continue

    async def tick(self) -> None:
        """One look at what is due now."""
        self._kick.clear()
        now = self._clock()
        due = {key: tracked for key, tracked in self._tracked.items() if tracked.due <= now}
        if not due:
            return
        pods = [(tracked, pod) for tracked in due.values() for pod in tracked.pods if pod.loaded and pod.ip]
        await asyncio.gather(self._sample_gateways(now), *(self._sample_pod(tracked, pod) for tracked, pod in pods))
        for key, tracked in due.items():
            if self._tracked.get(key) is not tracked:
                continue
            try:
                self._look(key, tracked, self._clock())
            except Exception:
                # What is odd about one resource must not stop the others from being scaled.
                logger.exception("no decision", extra={"key": str(key)})

    def _look(self, key: Key, tracked: Tracked, now: float) -> None:
        tracked.due = now + TICK_SECONDS
        tracked.load = summary(tracked.owner, tracked.pods, tracked.reports, self._gateways.values(), now)
        self._metrics.states.load(key.namespace, key.name, tracked.load)
        changed = self._decide(key, tracked, now) if _decides(tracked.owner) else False
        if changed or (tracked.load != tracked.told and now - tracked.told_at >= LOAD_SECONDS):
            tracked.told, tracked.told_at = tracked.load, now
            self._enqueue(key)

    def _decide(self, key: Key, tracked: Tracked, now: float) -> bool:
        """Ask the policy; whether there is anything new to say."""
        seen = observation(
            tracked.owner, tracked.pods, tracked.reports, self._gateways.values(), tracked.replicas, wake=tracked.wake
        )
        tracked.wake = False
        decision = decide(policy_settings(tracked.owner.spec), tracked.state, seen, now)
        tracked.state, tracked.due = decision.state, now + decision.requeue
        before = tracked.scaling or Scaling(tracked.replicas, "", "")
        scaling = Scaling(decision.desired, decision.reason, decision.message, before.changes)
        if decision.desired != before.desired:
            change = Change(now, before.desired, decision.desired, decision.reason, decision.inputs)
            scaling = replace(scaling, changes=(*before.changes, change)[-_CHANGES_KEPT:])
            self._metrics.scaled(key.namespace, key.name, decision.reason)
            logger.info(
                "%s: %d to %d replicas: %s",
                decision.reason,
                before.desired,
                decision.desired,
                decision.message,
                extra={"key": str(key), "inputs": decision.inputs},
            )
        tracked.scaling = scaling
        unmet = scaling.desired != tracked.replicas
        return unmet or (scaling.desired, scaling.reason) != (before.desired, before.reason)

    async def _sample_pod(self, tracked: Tracked, pod: Pod) -> None:
        body = await self._get(pod.ip)
        if body is None:
            return
        try:
            tracked.reports[pod.name] = (self._clock(), decode_load(body))
        except msgspec.MsgspecError as error:
            logger.warning("load report of pod %s: %s", pod.name, error)

    async def _sample_gateways(self, now: float) -> None:
        if now - self._gateways_at >= GATEWAYS_SECONDS:
            self._gateways_at = now
            try:
                addresses = await self._list_gateways()
            except OSError as error:
                logger.warning("gateways cannot be listed: %s", error)
            else:
                known = self._gateways
                self._gateways = {
                    name: replace(known.get(name, Gateway(name)), ip=ip) for name, ip in addresses.items()
                }
        await asyncio.gather(*(self._sample_gateway(gateway) for gateway in self._gateways.values()))

    async def _sample_gateway(self, gateway: Gateway) -> None:
        report: GatewayReport | None = None
        body = await self._get(gateway.ip)
        if body is not None:
            try:
                report = decode_gateway(body)
            except msgspec.MsgspecError as error:
                logger.warning("report of gateway %s: %s", gateway.name, error)
        if gateway.name in self._gateways:
            self._gateways[gateway.name] = replace(gateway, report=report, sampled_at=self._clock())

    async def _get(self, ip: str) -> bytes | None:
        host = f"[{ip}]" if ":" in ip else ip
        async with self._slots:
            try:
                return await self._fetch(f"http://{host}:{names.PORT_ADMIN}{names.PATH_LOAD}")
            except (OSError, TimeoutError):
                self._metrics.missed_sample()
                return None


def _decides(owner: LLMDeployment) -> bool:
    """Whether the built-in autoscaler has a say."""
    return owner.spec.autoscaling.mode == "Builtin" and not owner.spec.suspend
