"""A hub as a pod of the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo.cluster import Cluster

SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@contextmanager
def hub_pod(cluster: Cluster, system: str, name: str, uri: str) -> Iterator[str]:
    """The address of a hub that serves the files of an image, `oci://REFERENCE` (hub.py)."""
    operator = cluster.get("deployment", "octavo-operator", system)
    assert operator is not None
    arguments = operator["spec"]["template"]["spec"]["containers"][0]["args"]
    image = next(a.partition("=")[2] for a in arguments if a.startswith("--server-cpu-image="))
    script = (Path(__file__).parent / "hub.py").read_text()
    head = {"name": name, "labels": {"app": name}}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": head, "data": {"hub.py": script}})
    container = {
        "name": "hub",
        "image": image,
        "command": ["python", "/hub/hub.py", "/model"],
        "securityContext": SECURITY,
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
        "volumeMounts": [{"name": "hub", "mountPath": "/hub"}, {"name": "model", "mountPath": "/model"}],
    }
    reference = {"reference": uri.removeprefix("oci://")}
    volumes = [{"name": "hub", "configMap": {"name": name}}, {"name": "model", "image": reference}]
    pod = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 0}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": pod})
    port = {"selector": {"app": name}, "ports": [{"port": 8080}]}
    cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": head, "spec": port})
    try:
        cluster.run("wait", f"pod/{name}", "-n", cluster.namespace, "--for=condition=Ready", "--timeout=90s")
        yield f"http://{name}.{cluster.namespace}.svc:8080"
    finally:
        cluster.run("delete", "pod,service,configmap", name, "-n", cluster.namespace, "--ignore-not-found")
