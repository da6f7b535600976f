"""The gateway's view of the cluster, against a real API server."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from tests.support.ports import free_port
from tests.support.waiting import eventually_async, patient

from octavo_gateway.discovery.endpoints import ModelTable
from octavo_gateway.discovery.kube_watch import Watcher, connect

SERVICES = "/api/v1/namespaces/{}/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"


class Admin:
    """Someone who may do everything, and one namespace per test."""

    def __init__(self, plane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace
        context = ssl.create_default_context(cafile=str(plane.ca))
        context.load_cert_chain(str(plane.certificate), str(plane.key))
        self.session = aiohttp.ClientSession(plane.server, connector=aiohttp.TCPConnector(ssl=context))

    async def call(self, method: str, path: str, body=None, kind: str = "application/json"):
        path = path.format(self.namespace)
        async with self.session.request(method, path, data=json.dumps(body), headers={"Content-Type": kind}) as answer:
            text = await answer.text()
            assert answer.status < 300, f"{method} {path}: {text}"
            return json.loads(text)

    async def serve(self, name: str, *pods: tuple[str, bool]) -> None:
        """A Service as the operator writes it, and the slice that Kubernetes would make of it."""
        labels = {"app.kubernetes.io/managed-by": "octavo", "octavo.dev/llmdeployment": name}
        notes = {"octavo.dev/models": f"{name},{name}-alias", "octavo.dev/hold": "true"}
        ports = [{"name": "api", "port": 8000}, {"name": "admin", "port": 9000}]
        metadata = {"name": name, "labels": labels, "annotations": notes}
        await self.call("POST", SERVICES, {"metadata": metadata, "spec": {"ports": ports, "clusterIP": "None"}})
        endpoints = [
            {"addresses": [ip], "conditions": {"ready": ready, "serving": ready, "terminating": False}}
            for ip, ready in pods
        ]
        slice_labels = labels | {"kubernetes.io/service-name": name}
        await self.call(
            "POST",
            SLICES,
            {
                "metadata": {"name": f"{name}-1", "labels": slice_labels},
                "addressType": "IPv4",
                "ports": ports,
                "endpoints": endpoints,
            },
        )

    async def patch(self, path: str, body) -> None:
        await self.call("PATCH", path, body, "application/merge-patch+json")


class Wire:
    """A TCP relay in front of the API server that a test can cut."""

    def __init__(self, server: str) -> None:
        self._target = urlsplit(server)
        self._writers: set[asyncio.StreamWriter] = set()
        self.up = True
        self.connections = 0

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def _relay(self, reader, writer) -> None:
        self._writers.add(writer)
        self.connections += 1
        try:
            if not self.up:
                return
            there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
            self._writers.add(back)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        finally:
            writer.close()

    async def _pump(self, reader, writer) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self) -> None:
        self.up = False
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def stop(self) -> None:
        self.cut()
        self._server.close()


def kubeconfig(plane, path: Path, **changes) -> Path:
    """The control plane's kubeconfig with another server or user."""
    content = json.loads(plane.kubeconfig.read_text())
    if "server" in changes:
        content["clusters"][0]["cluster"]["server"] = changes["server"]
    if "token" in changes:
        content["users"][0]["user"] = {"token": changes["token"]}
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
async def admin(plane, request):
    namespace = "gateway-" + request.node.name.replace("_", "-")[:40].strip("-").lower()
    someone = Admin(plane, namespace)
    async with someone.session:
        await someone.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        yield someone


class View:
    """What a running watcher last told."""

    def __init__(self) -> None:
        self.table: ModelTable | None = None

    def update(self, table: ModelTable) -> None:
        self.table = table

    def ready(self, model: str) -> list[str]:
        deployment = self.table.find(model) if self.table else None
        return [endpoint.url for endpoint in deployment.endpoints if endpoint.ready] if deployment else []


@pytest.fixture
async def watching():
    """Start watchers; they end with the test."""
    async with AsyncExitStack() as stack:

        async def watch(config: Path, *namespaces: str) -> tuple[View, Watcher]:
            api = await stack.enter_async_context(connect(config))
            watcher = Watcher(api, namespaces or None, random.Random(1).random)
            view = View()
            task = asyncio.create_task(watcher.run(view.update))

            async def stop() -> None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

            stack.push_async_callback(stop)
            return view, watcher

        yield watch


async def test_what_is_there_and_what_changes(admin, watching):
    await admin.serve("one", ("10.1.0.1", True), ("10.1.0.2", False))
    view, _ = await watching(admin.plane.kubeconfig, admin.namespace)
    await eventually_async(lambda: view.table is not None)
    assert view.ready("one-alias") == ["http://10.1.0.1:8000"]

    await admin.serve("two", ("10.1.0.3", True))
    await eventually_async(lambda: view.ready("two") == ["http://10.1.0.3:8000"])

    change = [{"addresses": ["10.1.0.2"], "conditions": {"ready": True, "serving": True, "terminating": False}}]
    await admin.patch(SLICES + "/one-1", {"endpoints": change})
    await eventually_async(lambda: view.ready("one") == ["http://10.1.0.2:8000"])

    await admin.patch(SERVICES + "/one", {"metadata": {"annotations": {"octavo.dev/cold-start-seconds": "12"}}})
    await eventually_async(lambda: view.table.find("one").cold_start == 12)

    await admin.call("DELETE", SERVICES + "/one")
    await eventually_async(lambda: view.table.find("one") is None)
    assert view.ready("two")


async def test_a_label_that_goes_takes_the_model_away(admin, watching):
    await admin.serve("one", ("10.1.0.1", True))
    view, _ = await watching(admin.plane.kubeconfig, admin.namespace)
    await eventually_async(lambda: bool(view.ready("one")))
    await admin.patch(SERVICES + "/one", {"metadata": {"labels": {"octavo.dev/llmdeployment": None}}})
    await eventually_async(lambda: view.table.find("one") is None)


async def test_other_namespaces_are_not_seen(admin, watching):
    await admin.call("POST", "/api/v1/namespaces", {"metadata": {"name": admin.namespace + "-b"}})
    other = Admin(admin.plane, admin.namespace + "-b")
    async with other.session:
        await other.serve("elsewhere", ("10.1.0.9", True))
        await admin.serve("here", ("10.1.0.1", True))
        view, _ = await watching(admin.plane.kubeconfig, admin.namespace)
        await eventually_async(lambda: bool(view.ready("here")))
        assert view.table.find("elsewhere") is None
        everything, _ = await watching(admin.plane.kubeconfig)
        await eventually_async(lambda: bool(everything.ready("elsewhere")) and bool(everything.ready("here")))


async def test_an_api_server_that_is_away_changes_nothing_and_is_caught_up_with(admin, watching, tmp_path):
    wire = Wire(admin.plane.server)
    port = await wire.start()
    config = kubeconfig(admin.plane, tmp_path / "config", server=f"https://127.0.0.1:{port}")
    await admin.serve("one", ("10.1.0.1", True))
    view, _ = await watching(config, admin.namespace)
    await eventually_async(lambda: bool(view.ready("one")))
    wire.cut()
    tried = wire.connections
    await admin.serve("two", ("10.1.0.2", True))
    await admin.call("DELETE", SERVICES + "/one")
    await eventually_async(lambda: wire.connections > tried)
    assert view.ready("one")
    wire.up = True
    await eventually_async(lambda: bool(view.ready("two")) and view.table.find("one") is None)
    await wire.stop()


async def test_an_expired_version_leads_to_a_new_list(admin, watching, tmp_path):
    wire = Wire(admin.plane.server)
    port = await wire.start()
    config = kubeconfig(admin.plane, tmp_path / "config", server=f"https://127.0.0.1:{port}")
    await admin.serve("one", ("10.1.0.1", True))
    view, watcher = await watching(config, admin.namespace)
    await eventually_async(lambda: bool(view.ready("one")))
    wire.cut()
    await admin.serve("two", ("10.1.0.2", True))
    mirrors = [*watcher._services, *watcher._slices]
    for mirror in mirrors:
        mirror.version = "1"
    wire.up = True
    await eventually_async(lambda: bool(view.ready("two")))
    assert all(int(mirror.version) > 1 for mirror in mirrors)
    await wire.stop()


async def test_the_documented_rights_are_enough_and_needed(admin, watching, tmp_path, caplog):
    """ServiceAccount with list and watch of two resources: sees models, may not read anything else."""
    role = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/"
    await admin.call("POST", "/api/v1/namespaces/{}/serviceaccounts", {"metadata": {"name": "gateway"}})
    rules = [
        {"apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    await admin.call("POST", role + "roles", {"metadata": {"name": "gateway"}, "rules": rules})
    token = await admin.call(
        "POST",
        "/api/v1/namespaces/{}/serviceaccounts/gateway/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}},
    )
    config = kubeconfig(admin.plane, tmp_path / "config", token=token["status"]["token"])
    await admin.serve("one", ("10.1.0.1", True))
    view, _ = await watching(config, admin.namespace)
    refused = "watch of %s interrupted"
    await eventually_async(lambda: len({r.args[0] for r in caplog.records if str(r.msg).startswith(refused)}) == 2)
    assert view.table is None
    binding = {
        "metadata": {"name": "gateway"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "gateway"},
        "subjects": [{"kind": "ServiceAccount", "name": "gateway", "namespace": admin.namespace}],
    }
    await admin.call("POST", role + "rolebindings", binding)
    await eventually_async(lambda: bool(view.ready("one")))
    await admin.patch(SLICES + "/one-1", {"endpoints": []})
    await eventually_async(lambda: not view.ready("one"))


async def test_the_command_serves_the_models_of_a_namespace(admin, tmp_path):
    await admin.serve("one", ("10.1.0.1", True))
    port, second = free_port(), free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "octavo_gateway", "--port", str(port), "--admin-port", str(second),
        "--kubeconfig", str(admin.plane.kubeconfig), "--namespace", admin.namespace, "--drain-delay", "0",
    )  # fmt: skip
    models: list[str] = []

    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client, asyncio.timeout(patient(30)):
        while "one" not in models:
            with suppress(aiohttp.ClientError):
                async with client.get("/v1/models") as answer:
                    models = [model["id"] for model in (await answer.json())["data"]]
            await asyncio.sleep(0.05)
        async with client.get("/readyz") as answer:
            assert answer.status == 200
    process.terminate()
    assert await process.wait() == 0
