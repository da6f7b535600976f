"""One pass over one LLMDeployment: read, plan, write, tell."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from octavo_operator.api.base import Json
from octavo_operator.api.profiles import completed
from octavo_operator.api.resource import InvalidSpecError, Key, LLMDeployment, parse
from octavo_operator.events.diff import news
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
    """Who asks pods for their load, and decides on replicas in mode Builtin."""

    def load(self, key: Key) -> Load | None:
        """What the pods of `key` said last; None when none was asked yet."""

    def scaling(self, key: Key) -> Scaling | None:
        """The latest decision; None when there was none yet."""

    def track(self, owner: LLMDeployment, pods: tuple[Pod, ...], replicas: int) -> None:
        """Go on with these pods; `replicas` is the Deployment's number now."""

    def forget(self, key: Key) -> None:
        """`key` is gone."""


class Reconciler:
    """Calls `reconcile(key)` for whatever reason as often as wanted: only the difference leads to writes.

    `nodes`: where the cluster's nodes can be read, None where they cannot.
    """

    def __init__(
        self,
        client: KubeClient,
        installation: Installation,
        sampler: Autoscaler,
        metrics: OperatorMetrics,
        clock: Callable[[], float],
        identity: str,
        basis: VersionTracker | None = None,
        nodes: NodeGpuReader | None = None,
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._teller = EventRecorder(client, identity, clock)
        self._installation = installation
        self._sampler = sampler
        self._metrics = metrics
        self._clock = clock
        # What was there when it was last looked at; the deletion of some of it may never be heard of.
        self.known: set[Key] = set()
        self._basis = basis or VersionTracker()

    async def reconcile(self, key: Key) -> float | None:
        """Bring `key` one step nearer to its spec; seconds until the next step, None when events will tell."""
        try:
            again = await self._pass(key)
        except Exception:
            self._metrics.reconciled("error")
            raise
        self._metrics.reconciled("success" if again is None else "requeue")
        return again

    async def screen(self, namespace: str | None, bodies: Iterable[Json]) -> list[Key]:
        """Which of these resources need a pass, told from a few lists: of the others, a pass would find the same.

        `namespace` is where all of them are, None when they are anywhere.
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
            self._basis.begin(key)
        together = await read_together(self._client, namespace, [owner for owner, _ in owners.values()])
        for key, (owner, meta) in owners.items():
            # Thousands of decisions must not keep the Lease and the watches waiting.
            await asyncio.sleep(0)
            try:
                observed, decided = self._decide(owner, from_lists(owner, together[key]), self._clock())
            except Exception:
                # A pass of its own fails alone, and comes back.
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

    def _decide(self, owner: LLMDeployment, observed: Observed, now: float) -> tuple[Observed, Plan]:
        observed = replace(observed, load=self._sampler.load(owner.key), scaling=self._sampler.scaling(owner.key))
        return observed, plan(owner, self._installation, observed, now)

    def _settle(self, owner: LLMDeployment, meta: Json, observed: Observed, decided: Plan) -> None:
        """Nothing is left to do: remember on what ground."""
        self._sampler.track(owner, observed.pods, decided.replicas)
        self._show(owner, decided.status)
        self._basis.settle(owner.key, {**observed.versions, owner.uid: version_of(meta.get("resourceVersion"))})

    async def _pass(self, key: Key) -> float | None:
        self._basis.begin(key)
        body = await self._client.get(LLMDEPLOYMENTS, key.namespace, key.name)
        if body is None:
            self.known.discard(key)
            self._sampler.forget(key)
            self._metrics.forget(key.namespace, key.name)
            self._teller.forget(key)
            return None
        self.known.add(key)
        try:
            owner = self._owner(body)
        except InvalidSpecError as error:
            # Only a resource from before a change of the CRD gets here; the API server refuses others.
            logger.error("%s", error, extra={"key": str(key)})  # noqa: TRY400 - the message says it all
            status = unreadable_status(body, str(error), self._clock())
            if status != body.get("status"):
                await self._client.apply_status(LLMDEPLOYMENTS, key.namespace, key.name, status)
            return None
        if owner.deleting:
            return None
        now = self._clock()
        seen = await observe(self._client, owner, now)
        if self._nodes is not None:
            seen = await self._nodes.explain(owner, seen)
        observed, decided = self._decide(owner, seen, now)
        _log(key, decided)
        try:
            await execute(self._client, owner, decided.actions)
        except RefusedError as error:
            refused = plan(owner, self._installation, replace(observed, refused=error.message), now)
            await self._write_status(owner, refused.status)
            raise
        self._sampler.track(owner, observed.pods, decided.replicas)
        await self._write_status(owner, decided.status)
        if not decided.actions and decided.requeue_after is None:
            self._settle(owner, body["metadata"], observed, decided)
        return decided.requeue_after

    async def _write_status(self, owner: LLMDeployment, status: Json) -> None:
        self._show(owner, status)
        if status != owner.status:
            written = await self._client.apply_status(LLMDEPLOYMENTS, owner.namespace, owner.name, status)
            self._basis.wrote(owner.key, owner.uid, version_of(written["metadata"].get("resourceVersion")))
            await self._teller.tell(owner, news(owner.status, status))

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
            what = f"mark pod {action.pod}"
        logger.info("%s", what, extra={"key": str(key)})
