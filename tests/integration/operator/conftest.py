"""LLMDeployments in a real API server, and the operator that reconciles them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from tests.integration.operator.jobs import finish_jobs
from tests.support.ports import free_port
from tests.support.waiting import eventually_async

from octavo_operator.api.resource import Key
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import KubeError
from octavo_operator.kube.permissions import rules
from octavo_operator.kube.resources import LLMDEPLOYMENTS, SERVICE_ACCOUNTS, Resource
from octavo_operator.metrics.process import OperatorMetrics
from octavo_operator.observe.pods import Pod
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.resources.common import Installation
from octavo_operator.status.input import Load, Scaling

Json = dict[str, Any]
Kubeconfig = Callable[..., Awaitable[Path]]

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
        reconciler = (Prompt if jobs else Reconciler)(
            client, installation, sampled, OperatorMetrics(), time.time, "test"
        )
        if isinstance(reconciler, Prompt):
            reconciler.jobs = kube
        return reconciler

    return make


@pytest.fixture
async def finishing(kube: KubeClient, namespace: str) -> AsyncIterator[None]:
    """Jobs of the test's namespace end by themselves, for operators that run as a process."""

    async def run() -> None:
        while True:
            # The API server may be away: that is what some tests are about.
            with contextlib.suppress(KubeError):
                await finish_jobs(kube, namespace)
            await asyncio.sleep(0.1)

    task = asyncio.create_task(run())
    yield
    task.cancel()


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
def kubeconfig(kube: KubeClient, plane: Any, tmp_path: Path) -> Kubeconfig:
    """Makes kubeconfigs of service accounts that have the operator's rights in one namespace, and no others.

    `server` may be another address than the API server's own.
    """

    numbers = itertools.count()
    made: dict[tuple[str, str], Path] = {}

    async def make(namespace: str, server: str = "") -> Path:
        if (namespace, server) in made:
            # Also when the API server is away.
            return made[namespace, server]
        name = f"operator-{next(numbers)}"
        file = tmp_path / f"{name}.kubeconfig"
        head = {"metadata": {"name": name, "namespace": namespace}}
        granted = [rule for group in rules().values() for rule in group]
        rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", **head}
        await kube.create(SERVICE_ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", **head})
        await kube.create(ROLES, {**rbac, "kind": "Role", "rules": granted})
        binding = {
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
        await kube.create(BINDINGS, {**rbac, **binding})
        path = SERVICE_ACCOUNTS.path(namespace, name, "token")
        spec = {"expirationSeconds": 3600}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token = (await kube._call("POST", path, body=request))["status"]["token"]
        cluster = {"server": server} if server else {"server": plane.server, "certificate-authority": str(plane.ca)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        file.write_text(yaml.safe_dump(config))
        made[namespace, server] = file
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

    async def leads(self) -> bool:
        """Only the leader looks for the LLMDeployment of a wake call."""
        assert self.process.returncode is None, self.log.read_text()
        return await self.asks("POST", "/v1/octavo/wake", json={"namespace": "x", "name": "x"}) == 404

    async def ready(self) -> bool:
        assert self.process.returncode is None, self.log.read_text()
        return await self.asks("GET", "/readyz") == 200


@pytest.fixture
async def start(
    kubeconfig: Kubeconfig,
    namespace: str,
    tmp_path: Path,
    finishing: None,
) -> AsyncIterator[Callable[..., Awaitable[Program]]]:
    """Starts operator processes; `server` may be a proxy, `environment` hold failpoints."""
    started: list[Program] = []

    async def run(
        name: str = "one", *, wait: bool = True, server: str = "", lease: int = 15, **environment: str
    ) -> Program:
        port, log = free_port(), tmp_path / f"{name}.log"
        command = [sys.executable, "-m", "octavo_operator", "--server-image", "server:1", "--server-cpu-image", "cpu:1"]
        command += ["--namespace-scope", namespace, "--namespace", namespace, "--host", "127.0.0.1"]
        command += ["--port", str(port), "--identity", name, "--lease-seconds", str(lease)]
        environment = {**os.environ, "KUBECONFIG": str(await kubeconfig(namespace, server)), **environment}
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=out, stderr=out)
        program = Program(process, port, log)
        started.append(program)
        if wait:
            await eventually_async(program.ready, 60)
        return program

    yield run
    for program in started:
        if program.process.returncode is None:
            program.process.kill()
            await program.process.wait()
