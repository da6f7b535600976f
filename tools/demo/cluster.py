"""Access to the demo's cluster: kubectl and helm calls, with JSON input and output."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

RESOURCE = "llmdeployments.octavo.dev"
T = TypeVar("T")


class ClusterError(Exception):
    """A kubectl or helm call failed; the message contains its error output."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster for kubectl and helm. `kubeconfig` None means the current context."""

    kubectl: Path
    helm: Path
    kubeconfig: Path | None
    namespace: str = "default"

    def environment(self) -> dict[str, str]:
        """Environment of programs that use this cluster."""
        env = dict(os.environ)
        if self.kubeconfig:
            env["KUBECONFIG"] = str(self.kubeconfig)
        return env

    def run(self, *args: str, stdin: str | None = None, check: bool = True, timeout: float = 120) -> str:
        """Output of `kubectl args`. Raises ClusterError with its error output if it fails."""
        return _run([str(self.kubectl), *args], self.environment(), stdin, check=check, timeout=timeout)

    def run_helm(self, *args: str, timeout: float = 300) -> str:
        """Output of `helm args`."""
        return _run([str(self.helm), *args], self.environment(), None, check=True, timeout=timeout)

    def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """An object, or None if it does not exist."""
        space = namespace or self.namespace
        output = self.run("get", kind, name, "-n", space, "-o", "json", "--ignore-not-found")
        return json.loads(output) if output.strip() else None

    def items(self, kind: str, selector: str = "", namespace: str | None = None) -> list[dict[str, Any]]:
        """Objects of a kind, by label selector."""
        args = ["get", kind, "-n", namespace or self.namespace, "-o", "json"]
        if selector:
            args += ["-l", selector]
        return list(json.loads(self.run(*args))["items"])

    def apply(self, manifest: Mapping[str, Any] | str) -> str:
        """`kubectl apply` of an object or of YAML text."""
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        return self.run("apply", "-n", self.namespace, "-f", "-", stdin=text)

    def ready_pods(self, name: str) -> list[dict[str, Any]]:
        """Ready, not terminating server pods of an LLMDeployment, without the pod of the inspection Job."""
        pods = self.items("pods", f"octavo.dev/llmdeployment={name},app.kubernetes.io/component=server")
        return [pod for pod in pods if is_ready(pod)]


def is_ready(pod: Mapping[str, Any]) -> bool:
    """True if a pod receives traffic."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def condition(resource: Mapping[str, Any] | None, kind: str) -> dict[str, Any] | None:
    """A condition of a resource's status, or None."""
    conditions = (resource or {}).get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), None)


def eventually(what: str, probe: Callable[[], T], *, timeout: float, interval: float = 0.5) -> T:
    """First truthy result of `probe`. Raises TimeoutError with `what` and the last result."""
    end = time.monotonic() + timeout
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {timeout:.0f} s; last seen: {answer!r}")
        time.sleep(interval)


@contextmanager
def gateway_url(cluster: Cluster, namespace: str, *, direct: bool) -> Iterator[str]:
    """URL of the gateway: its Service if the host has a route to it, else a port-forward for the block."""
    if direct:
        service = cluster.get("service", "octavo-gateway", namespace)
        if service is None:
            raise ClusterError(f"no Service octavo-gateway in namespace {namespace}: is the chart installed?")
        yield f"http://{service['spec']['clusterIP']}:8080"
        return
    command = [str(cluster.kubectl), "port-forward", "-n", namespace, "service/octavo-gateway", ":8080"]
    with subprocess.Popen(command, env=cluster.environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if "->" not in line:
                raise ClusterError(f"kubectl port-forward to octavo-gateway did not start: {line.strip()!r}")
            yield f"http://{line.split()[2]}"
        finally:
            process.terminate()


def _run(command: list[str], env: dict[str, str], stdin: str | None, *, check: bool, timeout: float) -> str:
    result = subprocess.run(command, env=env, input=stdin, capture_output=True, text=True, check=False, timeout=timeout)
    if check and result.returncode:
        raise ClusterError(f"{Path(command[0]).name} {' '.join(command[1:4])}: {result.stderr.strip()}")
    return result.stdout if result.returncode == 0 else result.stderr
