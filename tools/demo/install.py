"""From nothing to an installed chart: cluster, images, helm."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from demo.cluster import Cluster, ClusterError
from images import catalog
from images.produce import produce, workshop
from localcluster import host as machine
from localcluster import record, status
from localcluster.addresses import Addresses
from localcluster.up import up
from toolbox import ensure, program
from toolbox.catalog import NODE
from toolbox.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = "octavo-system"
# What nodes call the local cluster's registry, wherever it listens.
LOCAL_REGISTRY = "localhost:5000"
EXAMPLE = ROOT / "examples" / "smollm2.yaml"
MODEL_IMAGE = "models/smollm2"
# What a local cluster with the chart on it needs.
PROGRAMS = (*NODE, "kubectl", "helm")


@dataclass(frozen=True, slots=True)
class Installation:
    """A cluster with the chart installed. `example` is the first LLMDeployment, its model image as it was pushed."""

    cluster: Cluster
    example: str
    direct: bool
    """Whether this machine has a route to the cluster's Services."""
    registry: str
    """Where this machine pushes images; the local cluster's nodes know it as LOCAL_REGISTRY."""
    host: str = ""
    """This machine's address as pods of the local cluster see it."""


def install(
    name: str | None,
    registry: str | None,
    progress: Progress,
    *,
    audit_policy: str | None = None,
    watched: bool = False,
) -> Installation:
    """Octavo on the local cluster `name`, or on the kubectl context at hand when it is None.

    With an audit policy, a local cluster that is started for this logs requests by it. `watched`: this machine may read
    the metrics of a local cluster's pods, as Prometheus would.
    Raises ClusterError when the context at hand comes without a registry that its nodes can pull from.
    """
    if name is None and registry is None:
        raise ClusterError(
            "CLUSTER=current needs REGISTRY=host:port, a registry that this machine can push to and the cluster's "
            "nodes can pull from (kind and k3d: see their page on local registries)"
        )
    if name is None:
        kubectl, helm = ensure(("kubectl", "helm"), progress)
        cluster, push, known_as, host = Cluster(kubectl, helm, None), registry or "", registry or "", ""
    else:
        local = _local(name, progress, audit_policy)
        cluster = Cluster(program("kubectl"), program("helm"), local.kubeconfig)
        addresses = Addresses(local.network or 0)
        push, known_as, host = addresses.registry, LOCAL_REGISTRY, addresses.host
    images = produce(catalog.DEFAULT, progress, push=push, known_as=known_as)
    with progress.step(f"helm upgrade --install octavo charts/octavo --namespace {SYSTEM}"):
        _namespace(cluster)
        values: list[str] = []
        for value, image in (("operator", "operator"), ("gateway", "gateway"), ("serverCpu", "server-cpu")):
            built = images[image]
            values += [
                "--set",
                f"{value}.image.repository={built.repository}",
                "--set",
                f"{value}.image.tag={built.tag}",
            ]
        if name is not None and watched:
            values += ["--set-json", f"networkPolicy.metrics={json.dumps([_this_machine(name)])}"]
        chart = str(ROOT / "charts" / "octavo")
        cluster.run_helm("upgrade", "--install", "octavo", chart, "-n", SYSTEM, *values, "--wait", "--timeout", "4m")
    example = re.sub(rf"oci://\S*{MODEL_IMAGE}\S*", f"oci://{images[MODEL_IMAGE].reference}", EXAMPLE.read_text())
    return Installation(cluster, example, direct=name is not None, registry=push, host=host)


def _local(name: str, progress: Progress, audit_policy: str | None) -> record.Record:
    """The running cluster of this name, or a new one; then with the programs and the images that it needs, built."""
    found = record.load(name)
    if found is not None and found.up and status.report(found)[1]:
        progress.note(f"cluster {name} is up already: {found.server}")
        return found
    # What cannot work is said before minutes of compiling.
    machine.require_node()
    shop = workshop(progress, plain_http_push=True)
    with ThreadPoolExecutor(max_workers=1) as pool:
        # Images wait for packages, of Debian and of Python, while the Go compiler computes.
        images = pool.submit(shop.build, catalog.DEFAULT)
        ensure(PROGRAMS, progress)
        started = up(name, None, None, control_plane_only=False, progress=progress, audit_policy=audit_policy)
        images.result()
    return started


def _this_machine(name: str) -> dict[str, dict[str, str]]:
    """The NetworkPolicyPeer that is this machine, seen from a local cluster."""
    found = record.load(name)
    network = found.network if found else None
    return {"ipBlock": {"cidr": f"{Addresses(network or 0).host}/32"}}


def _namespace(cluster: Cluster) -> None:
    """The system namespace, under the strictest Pod Security level: the chart must live with it."""
    levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
    metadata = {"name": SYSTEM, "labels": levels}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
