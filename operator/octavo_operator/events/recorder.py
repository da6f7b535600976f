"""Records Kubernetes events about an LLMDeployment, and logs them. Nothing depends on them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from octavo_operator.api.base import Json
from octavo_operator.api.resource import Key, LLMDeployment
from octavo_operator.events.diff import Event
from octavo_operator.kube.client import MANAGER, KubeClient
from octavo_operator.kube.errors import KubeError
from octavo_operator.kube.resources import EVENT_RECORDS, LLMDEPLOYMENTS

logger = logging.getLogger(__name__)

_NOTE_LIMIT = 1024
# Rate limit of events per resource: a burst, then one per so many seconds.
BURST = 25.0
REFILL_SECONDS = 300.0


class EventRecorder:
    """Logs and posts events, rate-limited per resource as by client-go's spam filter.

    `clock`: Unix seconds.
    """

    def __init__(self, client: KubeClient, identity: str, clock: Callable[[], float]) -> None:
        self._client = client
        self._identity = identity
        self._clock = clock
        self._budgets: dict[Key, tuple[float, float]] = {}

    async def record(self, owner: LLMDeployment, items: Iterable[Event]) -> None:
        """Log and post all events; one that cannot be posted is logged and dropped."""
        for item in items:
            if not self._affordable(owner.key):
                continue
            level = logging.WARNING if item.warning else logging.INFO
            logger.log(level, "%s: %s", item.reason, item.message, extra={"key": str(owner.key)})
            try:
                await self._client.create(EVENT_RECORDS, self._body(owner, item))
            except KubeError as error:
                logger.warning("event not posted: %s", error, extra={"key": str(owner.key)})

    def forget(self, key: Key) -> None:
        """Drop the rate limit of a deleted resource."""
        self._budgets.pop(key, None)

    def _affordable(self, key: Key) -> bool:
        now = self._clock()
        left, at = self._budgets.get(key, (BURST, now))
        left = min(BURST, left + (now - at) / REFILL_SECONDS)
        self._budgets[key] = (left - 1 if left >= 1 else left, now)
        return left >= 1

    def _body(self, owner: LLMDeployment, item: Event) -> Json:
        time = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "apiVersion": EVENT_RECORDS.api_version,
            "kind": EVENT_RECORDS.kind,
            "metadata": {"generateName": f"{owner.name}-", "namespace": owner.namespace},
            "regarding": {
                "apiVersion": LLMDEPLOYMENTS.api_version,
                "kind": LLMDEPLOYMENTS.kind,
                "namespace": owner.namespace,
                "name": owner.name,
                "uid": owner.uid,
            },
            "type": "Warning" if item.warning else "Normal",
            "reason": item.reason,
            "note": item.message[:_NOTE_LIMIT],
            "action": "Reconcile",
            "eventTime": time,
            "reportingController": MANAGER,
            "reportingInstance": self._identity,
        }
