"""LLMDeployments in a real API server, and the operator that reconciles them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from octavo_operator.api.resource import Key
from octavo_operator.builders.common import Installation
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import ConflictError
from octavo_operator.kube.permissions import rules
from octavo_operator.kube.resources import JOBS, LLMDEPLOYMENTS, PODS, SERVICE_ACCOUNTS, Resource
from octavo_operator.metrics import Metrics
from octavo_operator.reconcile.pods import Pod
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.reconcile.view import Load, Scaling

sys.path.insert(0, str(Path(__file__).resolve().parent))

from breaking_proxy import free_port

Json = dict[str, Any]
Kubeconfig = Callable[..., Path]

ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")


class Sampled:
    """A sampler that knows what the test says."""

    def __init__(self) -> None:
        self.now: Load | None = None
        self.decision: Scaling | None = None
        self.tracked: tuple[Pod, ...] = ()

    def load(self, key: Key) -> Load | None:
        return self.now

    def scaling(self, key: Key) -> Scaling | None:
        return self.decision

    def track(self, owner: object, pods: tuple[Pod, ...], replicas: int) -> None:
        self.tracked = pods

    def forget(self, key: Key) -> None:
        self.tracked = ()


@pytest.fixture
def sampled() -> Sampled:
    return Sampled()


class Prompt(Reconciler):
    """A reconciler in a cluster whose Jobs are done as soon as they are there."""

    jobs: KubeClient

    async def reconcile(self, key: Key) -> float | None:
        again = await super().reconcile(key)
        if await finish_jobs(self.jobs, key.namespace):
            again = await super().reconcile(key)
        return again


@pytest.fixture
def make_reconciler(sampled: Sampled, kube: KubeClient) -> Callable[..., Reconciler]:
    """A reconciler. Nobody runs Jobs here: with `jobs`, those that look at models end at once, with that report."""

    def make(client: KubeClient, *, jobs: bool = True) -> Reconciler:
        installation = Installation("octavo-server:1", "octavo-server-cpu:1", "octavo-system")
        reconciler = (Prompt if jobs else Reconciler)(client, installation, sampled, Metrics(), time.time, "test")
        if isinstance(reconciler, Prompt):
            reconciler.jobs = kube
        return reconciler

    return make


@pytest.fixture
async def finishing(kube: KubeClient, namespace: str) -> AsyncIterator[None]:
    """Jobs of the test's namespace end by themselves, for operators that run as a process."""

    async def run() -> None:
        while True:
            await finish_jobs(kube, namespace)
            await asyncio.sleep(0.1)

    task = asyncio.create_task(run())
    yield
    task.cancel()


async def finish_jobs(kube: KubeClient, namespace: str, report: str = "") -> bool:
    """Let the unfinished Jobs of a namespace end well, with this termination message; whether there were any."""
    unfinished = [job for job in await kube.list(JOBS, namespace) if not job.get("status", {}).get("succeeded")]
    for job in unfinished:
        await finish_job(kube, job, report)
    return bool(unfinished)


async def finish_job(kube: KubeClient, job: Json, report: str) -> None:
    """What the Job controller and a kubelet would do."""
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    template = job["spec"]["template"]
    pod = f"{name}-{job['metadata']['uid'][:5]}"
    labels = template["metadata"]["labels"] | {"batch.kubernetes.io/job-name": name}
    head = {"name": pod, "namespace": namespace, "labels": labels}
    time_ = "2026-01-01T00:00:00Z"
    with contextlib.suppress(ConflictError):
        await kube.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": template["spec"]})
    ended = {"exitCode": 0, "message": report, "startedAt": time_, "finishedAt": time_}
    container = {"name": "model", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    states = [container | {"state": {"terminated": ended}}]
    await kube.apply_status(PODS, namespace, pod, {"phase": "Succeeded", "containerStatuses": states})
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": time_, "lastProbeTime": time_}
        for kind in ("SuccessCriteriaMet", "Complete")
    ]
    done = {"succeeded": 1, "startTime": time_, "completionTime": time_, "conditions": conditions}
    await kube.apply_status(JOBS, namespace, name, done)


@pytest.fixture
def llmd(namespace: str) -> Callable[..., Json]:
    """Body of an LLMDeployment."""

    def make(name: str = "tiny", **spec: Any) -> Json:
        model = {"model": {"uri": "oci://registry.local/models/tiny:1"}, "resources": {"gpu": {"count": 0}}}
        return {
            "apiVersion": LLMDEPLOYMENTS.api_version,
            "kind": LLMDEPLOYMENTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {**model, **spec},
        }

    return make


@pytest.fixture
async def kubeconfig(kube: KubeClient, namespace: str, plane: Any, tmp_path: Path) -> Kubeconfig:
    """Makes kubeconfigs of a service account that has the operator's rights in its namespace, and no others.

    `server` may be another address than the API server's own.
    """
    head = {"metadata": {"name": "operator", "namespace": namespace}}
    granted = [rule for group in rules().values() for rule in group]
    await kube.create(SERVICE_ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", **head})
    await kube.create(ROLES, {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", **head, "rules": granted})
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        **head,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"},
        "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": namespace}],
    }
    await kube.create(BINDINGS, binding)
    path = SERVICE_ACCOUNTS.path(namespace, "operator", "token")
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = (await kube._call("POST", path, body=request))["status"]["token"]

    def make(server: str = "") -> Path:
        cluster = {"server": server} if server else {"server": plane.server, "certificate-authority": str(plane.ca)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        file = tmp_path / f"kubeconfig-{len(list(tmp_path.glob('kubeconfig-*')))}"
        file.write_text(yaml.safe_dump(config))
        return file

    return make


class Program:
    """One running operator process."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, log: Path) -> None:
        self.process, self.url, self.log = process, f"http://127.0.0.1:{port}", log

    async def asks(self, method: str, path: str, **more: Any) -> int:
        """Status of the answer; 0 without one."""
        try:
            async with aiohttp.request(method, self.url + path, **more) as answer:
                return answer.status
        except aiohttp.ClientError:
            return 0

    async def ready(self) -> bool:
        assert self.process.returncode is None, self.log.read_text()
        return await self.asks("GET", "/readyz") == 200


@pytest.fixture
async def start(
    kubeconfig: Kubeconfig,
    namespace: str,
    tmp_path: Path,
    eventually: Callable[..., Awaitable[Any]],
    finishing: None,
) -> AsyncIterator[Callable[..., Awaitable[Program]]]:
    """Starts operator processes; `server` may be a proxy, `environment` hold failpoints."""
    started: list[Program] = []

    async def run(name: str = "one", *, wait: bool = True, server: str = "", **environment: str) -> Program:
        port, log = free_port(), tmp_path / f"{name}.log"
        command = [sys.executable, "-m", "octavo_operator", "--server-image", "server:1", "--server-cpu-image", "cpu:1"]
        command += ["--namespace-scope", namespace, "--namespace", namespace, "--host", "127.0.0.1"]
        command += ["--port", str(port), "--identity", name]
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig(server)), **environment}
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=out, stderr=out)
        program = Program(process, port, log)
        started.append(program)
        if wait:
            await eventually(program.ready, 60)
        return program

    yield run
    for program in started:
        if program.process.returncode is None:
            program.process.kill()
            await program.process.wait()
