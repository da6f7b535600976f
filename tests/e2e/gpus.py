"""A node with GPUs, as far as Kubernetes can tell: the device plugin of tools/fakegpu, in a pod as real ones run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.e2e import fileimages
from tests.e2e.waiting import patiently

from demo.cluster import Cluster
from demo.install import Installation
from toolbox import program

NAMESPACE = "fakegpu"
RESOURCE = "nvidia.com/gpu"
_SOCKETS = "/var/lib/kubelet/device-plugins"
_TIMEOUT = 120


@contextmanager
def on_the_node(installation: Installation, count: int) -> Iterator[str]:
    """Name of the cluster's node, which has `count` GPUs meanwhile."""
    files = {"fakegpu": program("fakegpu").read_bytes()}
    image = fileimages.push(installation.registry, "fakegpu", files)
    cluster = replace(installation.cluster, namespace=NAMESPACE)
    (node,) = cluster.items("nodes")
    name = node["metadata"]["name"]
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    cluster.apply(_plugin(image, count))
    try:
        patiently(f"{count} GPUs", lambda: gpus(cluster) == count, timeout=_TIMEOUT)
        yield name
    finally:
        labels = ("nvidia.com/gpu.product-", "nvidia.com/gpu.memory-")
        cluster.run("label", "node", name, *labels)
        cluster.run("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
        patiently("no GPU any more", lambda: gpus(cluster) == 0, timeout=_TIMEOUT)


def gpus(cluster: Cluster) -> int:
    """GPUs that the node offers."""
    (node,) = cluster.items("nodes")
    return int(node["status"]["allocatable"].get(RESOURCE, 0))


def _plugin(image: str, count: int) -> dict[str, object]:
    container = {
        "name": "plugin",
        "image": image,
        "command": ["/fakegpu", f"--count={count}"],
        "volumeMounts": [{"name": "sockets", "mountPath": _SOCKETS}],
    }
    sockets = {"name": "sockets", "hostPath": {"path": _SOCKETS}}
    spec = {"containers": [container], "volumes": [sockets], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "fakegpu"}, "spec": spec}
