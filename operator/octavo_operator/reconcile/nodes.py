"""Reads the GPUs of the cluster's nodes: whether a model fits them, and why a pod that needs GPUs is unschedulable."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from octavo_operator.api.base import Json
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import KubeError
from octavo_operator.kube.resources import NODES
from octavo_operator.observe.gpu_fit import cards, explained, of_node
from octavo_operator.observe.pods import Pod
from octavo_operator.reconcile.plan import Observed
from octavo_operator.resources.placement import pod_fields

logger = logging.getLogger(__name__)

# A thousand nodes are megabytes to read, and a cluster without a free GPU may have many resources that wait.
AGAIN_SECONDS = 30.0


class NodeGpuReader:
    """Nodes with GPUs, cached for some seconds; longer while they cannot be read. `clock`: monotonic seconds."""

    def __init__(self, client: KubeClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._seen: dict[str, tuple[float, tuple[Json, ...] | None]] = {}
        # Passes that start together wait for one list.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def look(self, owner: LLMDeployment, observed: Observed) -> Observed:
        """`observed`, with the GPUs on which the owner's pods may run.

        The nodes' GPUs are added to the problem of each unschedulable pod that needs GPUs.
        """
        gpu, inspection = owner.spec.resources.gpu, observed.inspection
        if not gpu.count:
            return observed
        async with self._locks[gpu.resource_name]:
            nodes = await self._nodes(gpu.resource_name)
        if nodes is None:
            return observed
        observed = replace(observed, cards=cards(pod_fields(owner), gpu, nodes))
        pods = (*observed.pods, *([inspection.pod] if inspection else []))
        if not any(problem.reason == "Unschedulable" for pod in pods for problem in pod.problems):
            return observed
        text = explained(gpu, [of_node(node, gpu.resource_name) for node in nodes])
        return replace(
            observed,
            pods=tuple(_with(pod, text) for pod in observed.pods),
            inspection=replace(inspection, pod=_with(inspection.pod, text)) if inspection else None,
        )

    async def _nodes(self, resource: str) -> tuple[Json, ...] | None:
        """The nodes that have the resource; None where nodes may not be read."""
        read, found = self._seen.get(resource, (float("-inf"), None))
        if self._clock() - read < AGAIN_SECONDS:
            return found
        try:
            pages = self._client.pages(NODES, None)
            found = tuple([_trimmed(node) async for page in pages for node in page if of_node(node, resource).count])
        except KubeError as error:
            # Without the permission the explanation is missing, and memory is compared by the server alone.
            logger.info("nodes are not looked at: %s", error)
        self._seen[resource] = self._clock(), found
        return found


def _trimmed(node: Json) -> Json:
    """A node without images, addresses and conditions: they are most of its bytes."""
    return {
        "metadata": {"labels": node["metadata"].get("labels", {})},
        "spec": {"taints": node.get("spec", {}).get("taints", [])},
        "status": {"allocatable": node.get("status", {}).get("allocatable", {})},
    }


def _with(pod: Pod, text: str) -> Pod:
    problems = tuple(
        replace(problem, message=f"{problem.message}; {text}") if problem.reason == "Unschedulable" else problem
        for problem in pod.problems
    )
    return replace(pod, problems=problems)
