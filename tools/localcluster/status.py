"""A table of a cluster's parts."""

import time

from localcluster import components, kube, pki, processes
from localcluster.addresses import Addresses
from localcluster.config import REGISTRY_NAME
from localcluster.down import config_file
from localcluster.record import Record
from localcluster.supervisor import read_state
from toolbox.progress import duration


def report(cluster: Record) -> tuple[str, bool]:
    """The table, and True if everything runs and the API server (and the node) is ready."""
    alive = bool(processes.keepers(config_file(cluster)))
    rows = [("cluster", cluster.name), ("data", str(cluster.data)), ("kubeconfig", str(cluster.kubeconfig))]
    healthy = alive and cluster.up
    if not alive:
        rows.append(("state", "not running: `down` removes the remains, `up` starts it again"))
    elif not cluster.up:
        rows.append(("state", "starting, or its start was killed: `down` removes it"))
    else:
        api_ready, node_state = _health(cluster)
        healthy = api_ready and node_state in ("", "Ready")
        rows.append(("API server", f"{cluster.server} ({'ready' if api_ready else 'not ready'})"))
        rows += _network_rows(cluster, node_state)
    for name, entry in (read_state(cluster.data) if alive else {}).items():
        since = duration(time.time() - entry.started)
        rows.append((name, f"running for {since}, restarted {entry.restarts} times"))
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {value}" for label, value in rows), healthy


def _health(cluster: Record) -> tuple[bool, str]:
    api = kube.connect(cluster.server, pki.Pki(cluster.data / "pki"))
    if not api.ready():
        return False, "unknown"
    return True, ("Ready" if kube.node_ready(api, components.NODE_NAME) else "NotReady") if cluster.network else ""


def _network_rows(cluster: Record, node_state: str) -> list[tuple[str, str]]:
    if cluster.network is None:
        return []
    plan = Addresses(cluster.network)
    return [
        ("node", f"{components.NODE_NAME} {plan.node} ({node_state})"),
        ("pods", plan.pods),
        ("services", f"{plan.services}, DNS {plan.dns}"),
        ("registry", f"http://{plan.registry}, {REGISTRY_NAME} in manifests"),
        ("host", f"{plan.host} on link {plan.link}"),
    ]
