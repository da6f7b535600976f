"""Installs Octavo: cluster, images, helm chart."""

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
# The name of the local cluster's registry on nodes, whatever its address.
LOCAL_REGISTRY = "localhost:5000"
EXAMPLE = ROOT / "examples" / "smollm2.yaml"
MODEL_IMAGE = "models/smollm2"
# Programs that a local cluster with the chart needs.
PROGRAMS = (*NODE, "kubectl", "helm")


@dataclass(frozen=True, slots=True)
class Installation:
    """A cluster with the chart installed. `example`: the first LLMDeployment, with the pushed model image."""

    cluster: Cluster
    example: str
    direct: bool
    """True if this machine has a route to the cluster's Services."""
    registry: str
    """Registry to which this machine pushes images; on the local cluster's nodes its name is LOCAL_REGISTRY."""
    host: str = ""
    """This machine's address for pods of the local cluster."""


def install(
    name: str | None,
    registry: str | None,
    progress: Progress,
    *,
    audit_policy: str | None = None,
    watched: bool = False,
) -> Installation:
    """Install Octavo on the local cluster `name`, or on the current kubectl context if None.

    `audit_policy`: for the API server of a local cluster that is started here. `watched`: this machine may scrape the
    metrics of a local cluster's pods, like Prometheus.
    Raises ClusterError for the current context without a registry.
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
                # A tag of digits alone, or like 12e34567, is a number for --set.
                "--set-string",
                f"{value}.image.repository={built.repository},{value}.image.tag={built.tag}",
            ]
        if name is not None and watched:
            values += ["--set-json", f"networkPolicy.metrics={json.dumps([_this_machine(name)])}"]
        chart = str(ROOT / "charts" / "octavo")
        cluster.run_helm("upgrade", "--install", "octavo", chart, "-n", SYSTEM, *values, "--wait", "--timeout", "4m")
    example = re.sub(rf"oci://\S*{MODEL_IMAGE}\S*", f"oci://{images[MODEL_IMAGE].reference}", EXAMPLE.read_text())
    return Installation(cluster, example, direct=name is not None, registry=push, host=host)


def _local(name: str, progress: Progress, audit_policy: str | None) -> record.Record:
    """The running cluster of this name, or a new one; for a new one programs and images are built first."""
    found = record.load(name)
    if found is not None and found.up and status.report(found)[1]:
        progress.note(f"cluster {name} is up already: {found.server}")
        return found
    # Fail before minutes of compiling, not after.
    machine.require_node()
    shop = workshop(progress, plain_http_push=True)
    with ThreadPoolExecutor(max_workers=1) as pool:
        # Image builds mostly wait for downloads of Debian and Python packages, while the Go compiler uses the CPU.
        images = pool.submit(shop.build, catalog.DEFAULT)
        ensure(PROGRAMS, progress)
        started = up(name, None, None, control_plane_only=False, progress=progress, audit_policy=audit_policy)
        images.result()
    return started


def _this_machine(name: str) -> dict[str, dict[str, str]]:
    """The NetworkPolicyPeer of this machine, for a local cluster."""
    found = record.load(name)
    network = found.network if found else None
    return {"ipBlock": {"cidr": f"{Addresses(network or 0).host}/32"}}


def _namespace(cluster: Cluster) -> None:
    """Create the system namespace with Pod Security level restricted, in which the chart must work."""
    levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
    metadata = {"name": SYSTEM, "labels": levels}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
