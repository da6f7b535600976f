"""Reads the GPUs of the cluster's nodes, to explain why a pod that needs GPUs is unschedulable."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import RefusedError
from octavo_operator.kube.resources import NODES
from octavo_operator.observe.gpu_fit import NodeGpus, explained, of_node
from octavo_operator.observe.pods import Pod
from octavo_operator.reconcile.plan import Observed

logger = logging.getLogger(__name__)

# A thousand nodes are megabytes to read, and a cluster without a free GPU may have many resources that wait.
AGAIN_SECONDS = 30.0


class NodeGpuReader:
    """GPUs of all nodes, cached for some seconds. `clock`: monotonic seconds."""

    def __init__(self, client: KubeClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._seen: dict[str, tuple[float, tuple[NodeGpus, ...] | None]] = {}

    async def explain(self, owner: LLMDeployment, observed: Observed) -> Observed:
        """`observed`, with the nodes' GPUs added to the problem of each unschedulable pod that needs GPUs."""
        gpu, inspection = owner.spec.resources.gpu, observed.inspection
        pods = (*observed.pods, *([inspection.pod] if inspection else []))
        if not gpu.count or not any(problem.reason == "Unschedulable" for pod in pods for problem in pod.problems):
            return observed
        having = await self._gpus(gpu.resource_name)
        if having is None:
            return observed
        text = explained(gpu, having)
        return replace(
            observed,
            pods=tuple(_with(pod, text) for pod in observed.pods),
            inspection=replace(inspection, pod=_with(inspection.pod, text)) if inspection else None,
        )

    async def _gpus(self, resource: str) -> tuple[NodeGpus, ...] | None:
        """GPUs of every node; None where nodes may not be read."""
        read, found = self._seen.get(resource, (float("-inf"), None))
        if self._clock() - read < AGAIN_SECONDS:
            return found
        try:
            found = tuple([of_node(node, resource) async for page in self._client.pages(NODES, None) for node in page])
        except RefusedError as error:
            # Without this permission only the explanation is missing.
            logger.info("nodes are not looked at: %s", error)
            found = None
        self._seen[resource] = self._clock(), found
        return found


def _with(pod: Pod, text: str) -> Pod:
    problems = tuple(
        replace(problem, message=f"{problem.message}; {text}") if problem.reason == "Unschedulable" else problem
        for problem in pod.problems
    )
    return replace(pod, problems=problems)
