"""Events of the operator about an LLMDeployment. They inform; nothing depends on them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.kube.client import MANAGER, KubeClient
from octavo_operator.kube.errors import KubeError
from octavo_operator.kube.resources import EVENT_RECORDS, LLMDEPLOYMENTS
from octavo_operator.reconcile.news import News

logger = logging.getLogger(__name__)

_NOTE_LIMIT = 1024


async def post(client: KubeClient, owner: LLMDeployment, items: Iterable[News], identity: str, now: float) -> None:
    """Post all; one that cannot be posted is logged and forgotten."""
    time = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    for item in items:
        body = {
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
            "reportingInstance": identity,
        }
        try:
            await client.create(EVENT_RECORDS, body)
        except KubeError as error:
            logger.warning("event not posted: %s", error, extra={"key": str(owner.key)})
