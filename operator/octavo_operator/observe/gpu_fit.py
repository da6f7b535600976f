"""Compares the GPUs that a pod requests with those of the nodes: which it can get, and why no node fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from octavo_operator.api.base import Json
from octavo_operator.api.v1alpha1 import Gpu
from octavo_operator.observe.messages import short
from octavo_operator.observe.node_match import may_run_on
from octavo_operator.resources.placement import LABEL_GPU_COMPUTE_MAJOR, LABEL_GPU_MEMORY, LABEL_GPU_PRODUCT, least_mib

# A message lists at most this many kinds of nodes.
_KINDS = 5
_LIMIT = 300
# The server's kernels need compute capability 8.0 (`octavo_inference.backends.cuda.device.MIN_CAPABILITY`).
LEAST_MAJOR = 8


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """GPUs of one node: allocatable count, model, and memory of each in MiB; empty and 0 without labels."""

    count: int
    product: str
    memory: int


@dataclass(frozen=True, slots=True)
class Card:
    """The GPUs of a node on which a replica may run: product, bytes of each (0 if unknown), and how many there are."""

    product: str
    memory: int
    count: int


def cards(pod: Json, gpu: Gpu, nodes: Sequence[Json]) -> tuple[Card, ...]:
    """The kinds of GPUs on the nodes that have enough of them for `pod` (fields of its spec) and on which it may run.

    GPUs on which the server refuses to start are left out: those whose label has a compute capability below 8.0.
    Memory is that of the label of the resource: a slice of a GPU has one of its own (`nvidia.com/mig-1g.5gb.memory`).
    """
    found = set[Card]()
    for node in nodes:
        has = of_node(node, gpu.resource_name)
        labels = node["metadata"].get("labels", {})
        if has.count >= max(1, gpu.count) and _computes(labels) and may_run_on(pod, node):
            memory = labels.get(f"{gpu.resource_name}.memory", "")
            found.add(Card(has.product, int(memory) << 20 if memory.isdecimal() else 0, has.count))
    return tuple(sorted(found, key=lambda card: (card.memory, card.product, card.count)))


def _computes(labels: Json) -> bool:
    major = labels.get(LABEL_GPU_COMPUTE_MAJOR, "")
    return not major.isdecimal() or int(major) >= LEAST_MAJOR


def of_node(body: Json, resource: str) -> NodeGpus:
    """A node's GPUs by its extended resource and labels."""
    labels = body["metadata"].get("labels", {})
    memory = labels.get(LABEL_GPU_MEMORY, "")
    count = str(body.get("status", {}).get("allocatable", {}).get(resource, "0"))
    return NodeGpus(
        count=int(count) if count.isdecimal() else 0,
        product=labels.get(LABEL_GPU_PRODUCT, ""),
        memory=int(memory) if memory.isdecimal() else 0,
    )


def request_text(gpu: Gpu) -> str:
    """The GPUs that a replica requests, as text."""
    product = f" of product {gpu.product!r}" if gpu.product else ""
    memory = f" with at least {gpu.min_memory} ({least_mib(gpu)} MiB)" if gpu.min_memory else ""
    return f"{gpu.count} {gpu.resource_name}{product}{memory}"


def explained(gpu: Gpu, nodes: Sequence[NodeGpus]) -> str:
    """The nodes' GPUs, and the fix if no node can ever fit: the end of a sentence about an unschedulable pod."""
    having = [node for node in nodes if node.count]
    if not having:
        return (
            f"no node has {gpu.resource_name}: is the vendor's device plugin running (kubectl get nodes -o yaml shows "
            "what nodes offer below status.allocatable)?"
        )
    return short(f"{_misfit(gpu, having)}nodes have: {_listed(having, gpu.resource_name)}", _LIMIT)


def _misfit(gpu: Gpu, nodes: Sequence[NodeGpus]) -> str:
    if gpu.product and all(node.product != gpu.product for node in nodes):
        return "no node fits resources.gpu.product; "
    fitting = [node for node in nodes if gpu.product in (None, node.product)]
    if all(node.memory < least_mib(gpu) for node in fitting):
        return "no node fits resources.gpu.minMemory; "
    if all(node.count < gpu.count for node in fitting if node.memory >= least_mib(gpu)):
        return f"no node has {gpu.count} of them, and a replica has all its GPUs on one (resources.gpu.count); "
    return ""


def _listed(nodes: Sequence[NodeGpus], resource: str) -> str:
    """`8 NVIDIA-L4 of 23034 MiB (3 nodes)`, kinds of which there are most first."""
    kinds = Counter(nodes).most_common()
    shown = [_kind(node, number, resource) for node, number in kinds[:_KINDS]]
    return ", ".join([*shown, *([f"and {len(kinds) - _KINDS} other kinds"] if len(kinds) > _KINDS else [])])


def _kind(node: NodeGpus, number: int, resource: str) -> str:
    memory = f" of {node.memory} MiB" if node.memory else ""
    labels = {LABEL_GPU_PRODUCT: node.product, LABEL_GPU_MEMORY: node.memory}
    missing = " and ".join(label for label, value in labels.items() if not value)
    without = f" without label {missing}" if missing else ""
    return f"{node.count} {node.product or resource}{memory}{without} ({number} {'node' if number == 1 else 'nodes'})"
