"""The sampling loop: polls pods and gateways every two seconds, runs the policy, and enqueues changed resources.

It writes nothing to the cluster. Its state is lost with the process: the child Deployment keeps the replicas, and a new
leader rebuilds the rest within seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from zlib import crc32

from octavo_operator.api.base import Json
from octavo_operator.api.resource import Key, LLMDeployment
from octavo_operator.autoscale.policy import decide
from octavo_operator.autoscale.state import without_times
from octavo_operator.autoscale.types import PolicyState
from octavo_operator.autoscaler.decision_log import DecisionLog
from octavo_operator.autoscaler.observation import estimates, observation, policy_settings, summary
from octavo_operator.autoscaler.polling import Fetch, LatestReports, ListGateways, Reports
from octavo_operator.metrics.process import OperatorMetrics
from octavo_operator.observe.pods import Pod
from octavo_operator.status.input import Load, ReplicaChange, Scaling
from octavo_operator.status.status import LOAD_SECONDS

logger = logging.getLogger(__name__)

TICK_SECONDS = 2.0
# Pods sampled per second: with the built-in autoscaler (True), and in other modes, for the status alone (False).
# With more pods than that, the sampling interval grows.
_PER_SECOND = {True: 500.0, False: 100.0}
# Load updates enqueued per second over all resources: each costs a pass, and the load of thousands changes constantly.
LOAD_UPDATES_PER_SECOND = 5.0
_LEAST_WAIT = 0.05
_CHANGES_KEPT = 10


# The fields of a load that the status shows: KV occupancy, running, queued, held, KV tokens per replica, cold start
# seconds, and the canary's evidence.
Shown = tuple[object, ...]


@dataclass(slots=True)
class Tracked:
    """One LLMDeployment. `reports`: the latest report by pod, with its time of arrival.

    `shown`: the load last enqueued for the status, at time `shown_at`. `cold_start`: seconds of a start as measured
    by an earlier process.
    """

    owner: LLMDeployment
    pods: tuple[Pod, ...]
    replicas: int
    due: float = 0.0
    busy: bool = False
    wake: bool = False
    state: PolicyState = field(default_factory=PolicyState)
    scaling: Scaling | None = None
    reports: Reports = field(default_factory=dict)
    load: Load | None = None
    shown: Shown | None = None
    shown_at: float = 0.0
    cold_start: float | None = None


class AutoscaleLoop:
    """Samples all tracked resources until cancelled.

    `fetch` gets a URL's body and raises OSError or TimeoutError; `gateways` lists the gateway pods' addresses by name;
    `enqueue` queues a key for a reconcile pass; `clock` is Unix time; `log` records the decisions;
    `timer` returns monotonic seconds (default: `clock`) for the schedule.
    """

    def __init__(
        self,
        fetch: Fetch,
        gateways: ListGateways,
        enqueue: Callable[[Key], None],
        metrics: OperatorMetrics,
        clock: Callable[[], float],
        log: DecisionLog | None = None,
        timer: Callable[[], float] | None = None,
    ) -> None:
        self._log = log
        self._timer = timer or clock
        self._sampling = LatestReports(fetch, gateways, metrics, clock, self._timer)
        self._enqueue = enqueue
        self._metrics = metrics
        self._clock = clock
        self._tracked: dict[Key, Tracked] = {}
        self._kick = asyncio.Event()
        self._intervals = {True: TICK_SECONDS, False: TICK_SECONDS}

    def load(self, key: Key) -> Load | None:
        """The latest load of `key`; None before its first sample."""
        tracked = self._tracked.get(key)
        return tracked.load if tracked else None

    def scaling(self, key: Key) -> Scaling | None:
        """The latest decision in mode Builtin; None before the first."""
        tracked = self._tracked.get(key)
        return tracked.scaling if tracked else None

    def track(self, owner: LLMDeployment, pods: tuple[Pod, ...], replicas: int) -> None:
        """Track `owner` with these pods; `replicas` is the Deployment's current `spec.replicas`."""
        tracked = self._tracked.get(owner.key)
        if tracked is None or tracked.owner.uid != owner.uid:
            now = self._timer()
            tracked = self._tracked[owner.key] = Tracked(
                owner, pods, replicas, shown=_shown_by(owner.status), cold_start=_cold_start(owner.status)
            )
            # At start thousands are added at once: spread them over the sampling interval and the load update interval.
            share = crc32(str(owner.key).encode()) / (1 << 32)
            if not _decides(owner):
                tracked.due = now + share * (self._intervals[False] - TICK_SECONDS)
            if "load" in owner.status:
                tracked.shown_at = now - share * self._load_update_seconds()
            self._kick.set()
        # Dropped to save memory: the status is not used here and as large as the rest of the resource.
        tracked.owner, tracked.pods, tracked.replicas = replace(owner, status={}), pods, replicas
        for name in tracked.reports.keys() - {pod.name for pod in pods}:
            del tracked.reports[name]
        if not _decides(owner):
            tracked.scaling, tracked.state = None, without_times(tracked.state)
            self._metrics.states.estimates(owner.key.namespace, owner.key.name, None)

    def forget(self, key: Key) -> None:
        """Stop tracking a deleted resource."""
        self._tracked.pop(key, None)
        if self._log is not None:
            self._log.forget(str(key))

    def wake(self, key: Key) -> int | None:
        """Decide for `key` at once, because a gateway holds a request. Returns its replicas, None if unknown."""
        tracked = self._tracked.get(key)
        if tracked is None:
            return None
        tracked.wake, tracked.due = True, 0.0
        self._kick.set()
        return tracked.replicas

    async def run(self) -> None:
        """Sample each resource when it is due, concurrently, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._kick.clear()
                for key, tracked in self._due():
                    tasks.create_task(self._visit(key, tracked))
                now = self._timer()
                next_due = min((t.due for t in self._tracked.values() if not t.busy), default=now + TICK_SECONDS)
                try:
                    async with asyncio.timeout(min(max(_LEAST_WAIT, next_due - now), TICK_SECONDS)):
                        await self._kick.wait()
                except TimeoutError:
                    continue

    async def tick(self) -> None:
        """Sample all resources that are due now, once."""
        await asyncio.gather(*(self._visit(key, tracked) for key, tracked in self._due()))
        await self._sampling.finish()

    def _due(self) -> list[tuple[Key, Tracked]]:
        """The resources that are due; marks them as busy."""
        now = self._timer()
        pods = {True: 0, False: 0}
        for tracked in self._tracked.values():
            pods[_decides(tracked.owner)] += len(tracked.pods)
        self._intervals = {decided: max(TICK_SECONDS, pods[decided] / _PER_SECOND[decided]) for decided in pods}
        due = [(key, t) for key, t in self._tracked.items() if t.due <= now and not t.busy]
        for _, tracked in due:
            tracked.busy = True
        return due

    async def _visit(self, key: Key, tracked: Tracked) -> None:
        try:
            await self._sampling.sample([pod for pod in tracked.pods if pod.loaded and pod.ip], tracked.reports)
            if self._tracked.get(key) is tracked:
                self._evaluate(key, tracked, self._clock())
        except Exception:
            # An error with one resource must not stop the scaling of the others.
            logger.exception("no decision", extra={"key": str(key)})
            tracked.due = self._timer() + TICK_SECONDS
        finally:
            tracked.busy = False

    def _evaluate(self, key: Key, tracked: Tracked, now: float) -> None:
        decides = _decides(tracked.owner)
        time = self._timer()
        tracked.due = time + self._intervals[decides]
        adapters = tracked.load.adapters if tracked.load else {}
        tracked.load = summary(tracked.owner, tracked.pods, tracked.reports, self._sampling.gateways, now)
        self._metrics.states.load(key.namespace, key.name, tracked.load)
        changed = self._decide(key, tracked, now) if decides else False
        changed |= tracked.load.adapters != adapters  # rare, and someone waits for a new one
        shown = _shown(tracked.load)
        if changed or (shown != tracked.shown and time - tracked.shown_at >= self._load_update_seconds()):
            tracked.shown, tracked.shown_at = shown, time
            self._enqueue(key)

    def _load_update_seconds(self) -> float:
        """Seconds between two load updates of the same resource."""
        return max(LOAD_SECONDS, len(self._tracked) / LOAD_UPDATES_PER_SECOND)

    def _decide(self, key: Key, tracked: Tracked, now: float) -> bool:
        """Run the policy; True if the result needs a reconcile pass."""
        seen = observation(
            tracked.owner, tracked.pods, tracked.reports, self._sampling.gateways, tracked.replicas, wake=tracked.wake
        )
        tracked.wake = False
        settings = policy_settings(tracked.owner.spec, now, tracked.cold_start)
        decision = decide(settings, tracked.state, seen, now)
        if self._log is not None:
            self._log.write(str(key), settings, tracked.state, seen, now, decision)
        self._metrics.states.estimates(key.namespace, key.name, estimates(decision))
        tracked.state, tracked.due = decision.state, max(tracked.due - TICK_SECONDS, self._timer()) + decision.requeue
        before = tracked.scaling or Scaling(tracked.replicas, "", "")
        scaling = Scaling(decision.desired, decision.reason, decision.message, before.changes, decision.notice)
        if decision.desired != before.desired:
            change = ReplicaChange(now, before.desired, decision.desired, decision.reason, decision.inputs)
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
        noticed, known = (one.notice[0] if one.notice else "" for one in (scaling, before))
        if noticed and noticed != known:
            logger.warning("%s: %s", noticed, decision.notice[1] if decision.notice else "", extra={"key": str(key)})
        unmet = scaling.desired != tracked.replicas
        return unmet or (scaling.desired, scaling.reason, noticed) != (before.desired, before.reason, known)


def _decides(owner: LLMDeployment) -> bool:
    """True if the built-in autoscaler sets the replicas."""
    return owner.spec.autoscaling.mode == "Builtin" and not owner.spec.suspend


def _shown(load: Load) -> Shown:
    percent = None if load.kv_occupancy is None else f"{round(100 * load.kv_occupancy)}%"
    return percent, load.running, load.queued, load.held, load.kv_tokens, load.cold_start, load.evidence or None


def _shown_by(status: Json) -> Shown:
    """The load in the status, as written by an earlier process."""
    load, capacity = status.get("load", {}), status.get("capacity", {})
    counts = (load.get(name, 0) for name in ("runningRequests", "queuedRequests", "heldRequests"))
    measured = (capacity.get(name) for name in ("kvTokensPerReplica", "coldStartSeconds"))
    return load.get("kvOccupancy"), *counts, *measured, None


def _cold_start(status: Json) -> float | None:
    seconds: float | None = status.get("capacity", {}).get("coldStartSeconds")
    return seconds
