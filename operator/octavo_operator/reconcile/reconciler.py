"""Reconciles one LLMDeployment: observe, plan, execute, write the status, record events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from octavo_operator.api.base import Json
from octavo_operator.api.profiles import completed
from octavo_operator.api.resource import InvalidSpecError, Key, LLMDeployment, parse
from octavo_operator.events.diff import event_diff
from octavo_operator.events.recorder import EventRecorder
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import RefusedError
from octavo_operator.kube.resources import LLMDEPLOYMENTS
from octavo_operator.metrics.process import OperatorMetrics
from octavo_operator.observe.pods import Pod
from octavo_operator.reconcile.execute import execute
from octavo_operator.reconcile.nodes import NodeGpuReader
from octavo_operator.reconcile.plan import Apply, Delete, Observed, Plan, plan
from octavo_operator.reconcile.read import from_lists, observe, read_together
from octavo_operator.reconcile.version_tracker import VersionTracker, version_of
from octavo_operator.resources.common import Installation
from octavo_operator.status.input import Load, Scaling
from octavo_operator.status.status import unreadable_status

logger = logging.getLogger(__name__)


class Autoscaler(Protocol):
    """Polls the pods' load, and decides on replicas in mode Builtin."""

    def load(self, key: Key) -> Load | None:
        """The latest load of the pods of `key`; None before the first poll."""

    def scaling(self, key: Key) -> Scaling | None:
        """The latest decision; None before the first."""

    def track(self, owner: LLMDeployment, pods: tuple[Pod, ...], replicas: int) -> None:
        """Poll these pods from now on; `replicas`: current replicas of the Deployment."""

    def forget(self, key: Key) -> None:
        """Stop polling: `key` was deleted."""


class Reconciler:
    """Level-based: `reconcile(key)` may be called at any time and writes only differences.

    `nodes`: reader of the nodes' GPUs, None without permission to read nodes.
    """

    def __init__(
        self,
        client: KubeClient,
        installation: Installation,
        autoscaler: Autoscaler,
        metrics: OperatorMetrics,
        clock: Callable[[], float],
        identity: str,
        version_tracker: VersionTracker | None = None,
        nodes: NodeGpuReader | None = None,
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._recorder = EventRecorder(client, identity, clock)
        self._installation = installation
        self._autoscaler = autoscaler
        self._metrics = metrics
        self._clock = clock
        # Resources found at their last pass; the event of a deletion may have been missed.
        self.known: set[Key] = set()
        self._version_tracker = version_tracker or VersionTracker()

    async def reconcile(self, key: Key) -> float | None:
        """Run one pass for `key`. Returns seconds until the next one, None to wait for events."""
        try:
            again = await self._pass(key)
        except Exception:
            self._metrics.reconciled("error")
            raise
        self._metrics.reconciled("success" if again is None else "requeue")
        return again

    async def screen(self, namespace: str | None, bodies: Iterable[Json]) -> list[Key]:
        """The resources that need a pass, decided from a few list calls instead of a pass for each.

        `namespace`: that of all of them, None for several.
        """
        needy: list[Key] = []
        owners: dict[Key, tuple[LLMDeployment, Json]] = {}
        for body in bodies:
            key = Key(body["metadata"]["namespace"], body["metadata"]["name"])
            self.known.add(key)
            try:
                owners[key] = self._owner(body), body["metadata"]
            except InvalidSpecError:
                needy.append(key)
        for key in owners:
            self._version_tracker.begin(key)
        together = await read_together(self._client, namespace, [owner for owner, _ in owners.values()])
        for key, (owner, meta) in owners.items():
            # Thousands of decisions must not block the renewal of the Lease and the watches.
            await asyncio.sleep(0)
            try:
                seen = await self._with_gpus(owner, from_lists(owner, together[key]))
                observed, decided = self._decide(owner, seen, self._clock())
            except Exception:
                # Give it a pass of its own, which fails alone and is retried.
                logger.exception("no decision", extra={"key": str(key)})
                needy.append(key)
                continue
            if decided.actions or decided.requeue_after is not None or decided.status != owner.status:
                needy.append(key)
            elif not owner.deleting:
                self._settle(owner, meta, observed, decided)
        return needy

    def _owner(self, body: Json) -> LLMDeployment:
        """The resource as this installation understands it. Raises `InvalidSpecError`."""
        return completed(parse(body), self._installation.profiles)

    async def _with_gpus(self, owner: LLMDeployment, observed: Observed) -> Observed:
        return observed if self._nodes is None else await self._nodes.look(owner, observed)

    def _decide(self, owner: LLMDeployment, observed: Observed, now: float) -> tuple[Observed, Plan]:
        observed = replace(observed, load=self._autoscaler.load(owner.key), scaling=self._autoscaler.scaling(owner.key))
        return observed, plan(owner, self._installation, observed, now)

    def _settle(self, owner: LLMDeployment, meta: Json, observed: Observed, decided: Plan) -> None:
        """Record that nothing is left to do for these versions."""
        self._autoscaler.track(owner, observed.pods, decided.replicas)
        self._show(owner, decided.status)
        self._version_tracker.record_settled(
            owner.key, {**observed.versions, owner.uid: version_of(meta.get("resourceVersion"))}
        )

    async def _pass(self, key: Key) -> float | None:
        self._version_tracker.begin(key)
        body = await self._client.get(LLMDEPLOYMENTS, key.namespace, key.name)
        if body is None:
            self.known.discard(key)
            self._autoscaler.forget(key)
            self._metrics.forget(key.namespace, key.name)
            self._recorder.forget(key)
            return None
        self.known.add(key)
        try:
            owner = self._owner(body)
        except InvalidSpecError as error:
            # Only a resource from before a CRD change can be invalid: the API server validates all others.
            logger.error("%s", error, extra={"key": str(key)})  # noqa: TRY400 - the message says it all
            status = unreadable_status(body, str(error), self._clock())
            if status != body.get("status"):
                await self._client.apply_status(LLMDEPLOYMENTS, key.namespace, key.name, status)
            return None
        if owner.deleting:
            return None
        now = self._clock()
        seen = await self._with_gpus(owner, await observe(self._client, owner, now))
        observed, decided = self._decide(owner, seen, now)
        _log(key, decided)
        try:
            await execute(self._client, owner, decided.actions)
        except RefusedError as error:
            refused = plan(owner, self._installation, replace(observed, refused=error.message), now)
            await self._write_status(owner, refused.status)
            raise
        self._autoscaler.track(owner, observed.pods, decided.replicas)
        await self._write_status(owner, decided.status)
        if not decided.actions and decided.requeue_after is None:
            self._settle(owner, body["metadata"], observed, decided)
        return decided.requeue_after

    async def _write_status(self, owner: LLMDeployment, status: Json) -> None:
        self._show(owner, status)
        if status != owner.status:
            written = await self._client.apply_status(LLMDEPLOYMENTS, owner.namespace, owner.name, status)
            self._version_tracker.wrote(owner.key, owner.uid, version_of(written["metadata"].get("resourceVersion")))
            await self._recorder.record(owner, event_diff(owner.status, status))

    def _show(self, owner: LLMDeployment, status: Json) -> None:
        desired, ready = status["desiredReplicas"], status["readyReplicas"]
        self._metrics.replicas(owner.namespace, owner.name, desired, ready)
        self._metrics.states.status(owner.namespace, owner.name, status)
        scaling = owner.spec.autoscaling
        bounds = (scaling.min_replicas, scaling.max_replicas) if scaling.mode == "Builtin" else None
        self._metrics.autoscaled(owner.namespace, owner.name, bounds)


def _log(key: Key, decided: Plan) -> None:
    for action in decided.actions:
        if isinstance(action, Apply):
            what = f"apply {action.body['kind']} {action.body['metadata']['name']}"
        elif isinstance(action, Delete):
            what = f"delete {action.kind} {action.name}"
        else:
            what = f"annotate pod {action.pod}"
        logger.info("%s", what, extra={"key": str(key)})
