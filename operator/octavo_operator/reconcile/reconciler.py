"""One pass over one LLMDeployment: read, plan, write, tell."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from octavo_operator.api.blocks import Json
from octavo_operator.api.resource import InvalidSpecError, Key, LLMDeployment, parse
from octavo_operator.builders.common import Installation
from octavo_operator.events import Teller
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import RefusedError
from octavo_operator.kube.resources import LLMDEPLOYMENTS
from octavo_operator.metrics import Metrics
from octavo_operator.reconcile.execute import execute
from octavo_operator.reconcile.news import news
from octavo_operator.reconcile.observe import observe
from octavo_operator.reconcile.plan import Apply, Delete, Plan, plan
from octavo_operator.reconcile.pods import Pod
from octavo_operator.reconcile.view import Load, Scaling

logger = logging.getLogger(__name__)


class Sampler(Protocol):
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
    """Calls `reconcile(key)` for whatever reason as often as wanted: only the difference leads to writes."""

    def __init__(
        self,
        client: KubeClient,
        installation: Installation,
        sampler: Sampler,
        metrics: Metrics,
        clock: Callable[[], float],
        identity: str,
    ) -> None:
        self._client = client
        self._teller = Teller(client, identity, clock)
        self._installation = installation
        self._sampler = sampler
        self._metrics = metrics
        self._clock = clock
        # What was there when it was last looked at; the deletion of some of it may never be heard of.
        self.known: set[Key] = set()

    async def reconcile(self, key: Key) -> float | None:
        """Bring `key` one step nearer to its spec; seconds until the next step, None when events will tell."""
        try:
            again = await self._pass(key)
        except Exception:
            self._metrics.reconciled("error")
            raise
        self._metrics.reconciled("success" if again is None else "requeue")
        return again

    async def _pass(self, key: Key) -> float | None:
        body = await self._client.get(LLMDEPLOYMENTS, key.namespace, key.name)
        if body is None:
            self.known.discard(key)
            self._sampler.forget(key)
            self._metrics.forget(key.namespace, key.name)
            self._teller.forget(key)
            return None
        self.known.add(key)
        try:
            owner = parse(body)
        except InvalidSpecError as error:
            # Only a resource from before a change of the CRD gets here; the API server refuses others.
            logger.error("%s", error, extra={"key": str(key)})  # noqa: TRY400 - the message says it all
            return None
        if owner.deleting:
            return None
        now = self._clock()
        observed = await observe(self._client, owner, now)
        observed = replace(observed, load=self._sampler.load(key), scaling=self._sampler.scaling(key))
        decided = plan(owner, self._installation, observed, now)
        _log(key, decided)
        try:
            await execute(self._client, owner, decided.actions)
        except RefusedError as error:
            refused = plan(owner, self._installation, replace(observed, refused=error.message), now)
            await self._write_status(owner, refused.status)
            raise
        self._sampler.track(owner, observed.pods, decided.replicas)
        await self._write_status(owner, decided.status)
        return decided.requeue_after

    async def _write_status(self, owner: LLMDeployment, status: Json) -> None:
        desired, ready = status["desiredReplicas"], status["readyReplicas"]
        self._metrics.replicas(owner.namespace, owner.name, desired, ready)
        self._metrics.states.status(owner.namespace, owner.name, status)
        scaling = owner.spec.autoscaling
        bounds = (scaling.min_replicas, scaling.max_replicas) if scaling.mode == "Builtin" else None
        self._metrics.autoscaled(owner.namespace, owner.name, bounds)
        if status != owner.status:
            await self._client.apply_status(LLMDEPLOYMENTS, owner.namespace, owner.name, status)
            await self._teller.tell(owner, news(owner.status, status))


def _log(key: Key, decided: Plan) -> None:
    for action in decided.actions:
        if isinstance(action, Apply):
            what = f"apply {action.body['kind']} {action.body['metadata']['name']}"
        elif isinstance(action, Delete):
            what = f"delete {action.kind} {action.name}"
        else:
            what = f"mark pod {action.pod}"
        logger.info("%s", what, extra={"key": str(key)})
