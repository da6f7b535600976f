"""An API server that misbehaves, for real: whatever it did, everything is as it should be soon after it stopped."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import breaking_proxy as broken
import pytest
from breaking_proxy import BreakingProxy, Fault, answers, bent, event, is_watch, no_lease, only, says
from kubernetes.aio import config
from kubernetes.aio.client import Configuration

from octavo_operator import app, handlers, pulse
from octavo_operator.api.resource import Key
from octavo_operator.builders.common import Installation
from octavo_operator.kube import client
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.resources import CHILDREN, DEPLOYMENTS, LLMDEPLOYMENTS, POD_DISRUPTION_BUDGETS
from octavo_operator.metrics import Metrics
from octavo_protocol import names

Json = dict[str, Any]
Make = Callable[..., Json]
Eventually = Callable[..., Awaitable[Any]]

# Back-offs are shortened by so much that a test takes seconds; what is tested is that they exist and that they end.
LONGEST_PAUSE = 2.0
FAULT_SECONDS = 2.0
WATCHES = handlers.watches(["one"])
EXPIRED = event("ERROR", kind="Status", status="Failure", reason="Expired", code=410)
OVERLOADED = event("ERROR", kind="Status", status="Failure", reason="InternalError", code=500)

FAULTS: dict[str, Callable[[BreakingProxy], Fault]] = {
    "410 in the watch": lambda _: only(is_watch, says(EXPIRED)),
    "410 as the answer": lambda _: only(is_watch, answers(410)),
    "500 in the watch": lambda _: only(is_watch, says(OVERLOADED)),
    "429 to everything but the Lease": lambda _: only(no_lease, answers(429, Retry_After="1")),
    "500 to everything but the Lease": lambda _: only(no_lease, answers(500)),
    "silence in the watch": lambda _: only(is_watch, says(then_hang=True)),
    "the watch ends at once": lambda _: only(is_watch, says()),
    "the watch talks nonsense": lambda _: only(is_watch, says("<html>hello</html>\n")),
    "an event nobody knows": lambda _: only(is_watch, says(event("RENAMED", kind="Pod"), then_hang=True)),
    "reset in the middle of an event": lambda proxy: only(is_watch, bent(proxy, broken.in_the_middle)),
    "end in the middle of an event": lambda proxy: only(is_watch, bent(proxy, broken.half_a_line)),
    "events by drops": lambda proxy: only(is_watch, bent(proxy, broken.by_drops)),
    "events come twice": lambda proxy: only(is_watch, bent(proxy, broken.twice)),
    "old events come back": lambda proxy: only(is_watch, bent(proxy, broken.backwards)),
    "half-open connections": lambda _: only(no_lease, broken.half_open),
    "connections are reset": lambda _: only(no_lease, broken.reset),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every period short."""
    usual = handlers._settings

    def settings() -> Any:
        made = usual()
        made.watching.inactivity_timeout = 2.0
        made.networking.request_timeout = 2.0
        return made

    monkeypatch.setattr(handlers, "_settings", settings)
    monkeypatch.setattr(handlers.JitteredForever, "longest", LONGEST_PAUSE)
    monkeypatch.setattr(pulse, "LONGEST_PAUSE", LONGEST_PAUSE)
    monkeypatch.setattr(app, "RELISTS_APART", 1.0)
    monkeypatch.setattr(client, "_TIMEOUT", 2.0)


@pytest.fixture
async def proxy(plane: Any) -> AsyncIterator[BreakingProxy]:
    async with BreakingProxy(plane, broken.free_port()) as running:
        yield running


class Running:
    """An operator in this process."""

    def __init__(self, operator: app.App, port: int) -> None:
        self.app, self._health = operator, f"http://127.0.0.1:{port}/healthz"

    async def health(self) -> str:
        async with aiohttp.request("GET", self._health) as answer:
            return "" if answer.status == 200 else await answer.text()

    @property
    def ready(self) -> bool:
        return self.app._watching.is_set() and self.app._leading


@pytest.fixture
async def operator(
    proxy: BreakingProxy,
    kubeconfig: Callable[..., Path],
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> AsyncIterator[Running]:
    file = kubeconfig(proxy.url)

    async def configuration() -> Configuration:
        made = Configuration()
        await config.load_kube_config(config_file=str(file), client_configuration=made)
        return made

    monkeypatch.setattr(client, "_configuration", configuration)
    installation = Installation("server:1", "cpu:1", namespace)
    port = broken.free_port()
    options = app.Options(installation, (namespace,), namespace, "test", "127.0.0.1", port, 4)
    metrics = Metrics()
    kube = await KubeClient.connect(metrics.called)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1)) as http:
        running = app.App(options, kube, http, metrics)
        task = asyncio.create_task(running.run())
        found = Running(running, port)

        async def ready() -> bool:
            assert not task.done(), task.exception()
            return found.ready

        await eventually(ready)
        yield found
        assert not task.done(), task.exception()
        running.stop()
        await asyncio.wait_for(task, 30)
    await kube.close()


async def of(kube: KubeClient, name: str, namespace: str) -> dict[str, int]:
    """Children of one LLMDeployment, counted by kind."""
    labels = f"{names.LABEL_NAME}={name}"
    return {kind: len(await kube.list(resource, namespace, labels=labels)) for kind, resource in CHILDREN.items()}


async def described(kube: KubeClient, namespace: str, name: str) -> bool:
    """Whether the newest spec has been carried out."""
    body = await kube.get(LLMDEPLOYMENTS, namespace, name)
    budget = await kube.get(POD_DISRUPTION_BUDGETS, namespace, name)
    deployment = await kube.get(DEPLOYMENTS, namespace, name)
    if body is None or budget is None or deployment is None:
        return False
    return bool(body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"])


@pytest.mark.parametrize("name", FAULTS)
async def test_what_an_api_server_may_do(
    name: str,
    kube: KubeClient,
    llmd: Make,
    namespace: str,
    proxy: BreakingProxy,
    operator: Running,
    eventually: Eventually,
) -> None:
    for each in ("tiny", "gone"):
        await kube.apply(LLMDEPLOYMENTS, llmd(each))
    await eventually(lambda: described(kube, namespace, "tiny"))
    await eventually(lambda: described(kube, namespace, "gone"))
    usual = await of(kube, "tiny", namespace)
    tasks, threads = len(asyncio.all_tasks()), threading.active_count()
    async with proxy.broken(FAULTS[name](proxy)):
        await kube.apply(LLMDEPLOYMENTS, llmd("tiny", engine={"threads": 1}))
        await kube.apply(LLMDEPLOYMENTS, llmd("new"))
        await remove(kube, POD_DISRUPTION_BUDGETS, namespace, "tiny")
        await remove(kube, LLMDEPLOYMENTS, namespace, "gone")
        begun = time.monotonic()
        await asyncio.sleep(FAULT_SECONDS)
        since = [call for call in proxy.calls if call.at > begun]
        assert sum(call.watch for call in since) < 10 * WATCHES, "a watch that ends must not be asked for in a loop"
        assert len(since) < 100 * FAULT_SECONDS, "a fault must not be met by a storm"
        assert await operator.health() == ""

    for each in ("tiny", "new"):
        await eventually(lambda each=each: described(kube, namespace, each), 60)

    async def forgotten() -> bool:
        gone = Key(namespace, "gone")
        return gone not in operator.app._reconciler.known and operator.app._loop.scaling(gone) is None

    await eventually(forgotten, 60)
    # The old settings go once no pod can use them.
    await eventually(lambda: equal(lambda: of(kube, "tiny", namespace), usual))
    assert await of(kube, "new", namespace) == usual
    body = await kube.get(LLMDEPLOYMENTS, namespace, "tiny")
    assert body is not None
    assert (body["metadata"]["generation"], body["spec"]["engine"]["threads"]) == (2, 1)
    assert await operator.health() == ""
    await eventually(lambda: at_most(lambda: len(asyncio.all_tasks()), tasks))
    await eventually(lambda: at_most(threading.active_count, threads))


async def remove(kube: KubeClient, resource: Any, namespace: str, name: str) -> None:
    body = await kube.get(resource, namespace, name)
    assert body is not None
    await kube.delete(resource, namespace, name, body["metadata"]["uid"])


async def equal(question: Callable[[], Awaitable[Any]], wanted: Any) -> bool:
    return bool(await question() == wanted)


async def at_most(count: Callable[[], int], bound: int) -> bool:
    return count() <= bound
