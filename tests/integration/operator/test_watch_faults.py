"""An API server that misbehaves, for real: whatever it did, everything is as it should be soon after it stopped."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from tests.integration.operator import breaking_proxy as broken
from tests.integration.operator.breaking_proxy import (
    BreakingProxy,
    Fault,
    answers,
    bent,
    event,
    is_watch,
    no_lease,
    only,
    says,
)
from tests.support.ports import free_port
from tests.support.waiting import eventually_async, patient

from octavo_operator.api.resource import Key
from octavo_operator.app import main, watch_health, watches
from octavo_operator.app.leader import timing
from octavo_operator.kube import client
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import TransientError
from octavo_operator.kube.resources import CHILDREN, DEPLOYMENTS, LLMDEPLOYMENTS, POD_DISRUPTION_BUDGETS
from octavo_operator.metrics.process import OperatorMetrics
from octavo_operator.resources.common import Installation
from octavo_protocol import names

Json = dict[str, Any]
Make = Callable[..., Json]

# Back-offs are shortened by so much that a test takes seconds; what is tested is that they exist and that they end.
LONGEST_PAUSE = 2.0
# Time-outs too, but not below what an API server that shares two processors with other suites takes for an answer: a
# pass makes a dozen calls, and with 2 s none of several in a row came to its end.
TIMEOUT = 6.0
FAULT_SECONDS = 1.5
WATCHES = watches.watches(["one"])
EXPIRED = event("ERROR", kind="Status", status="Failure", reason="Expired", code=410)
OVERLOADED = event("ERROR", kind="Status", status="Failure", reason="InternalError", code=500)

Faults = dict[str, Callable[[BreakingProxy], Fault]]
FAULTS: dict[str, Faults] = {
    "what a watch may say": {
        "410": lambda _: only(is_watch, says(EXPIRED)),
        "another error": lambda _: only(is_watch, says(OVERLOADED)),
        "nothing": lambda _: only(is_watch, says(then_hang=True)),
        "the end at once": lambda _: only(is_watch, says()),
        "nonsense": lambda _: only(is_watch, says("<html>hello</html>\n")),
        "an event nobody knows": lambda _: only(is_watch, says(event("RENAMED", kind="Pod"), then_hang=True)),
    },
    "how events may come": {
        "half, then a reset": lambda proxy: only(is_watch, bent(proxy, broken.in_the_middle)),
        "half, then an orderly end": lambda proxy: only(is_watch, bent(proxy, broken.half_a_line)),
        "by drops": lambda proxy: only(is_watch, bent(proxy, broken.by_drops)),
        "twice": lambda proxy: only(is_watch, bent(proxy, broken.twice)),
        "old ones again": lambda proxy: only(is_watch, bent(proxy, broken.backwards)),
    },
    "what every request may meet": {
        "410": lambda _: only(is_watch, answers(410)),
        "404": lambda _: only(is_watch, answers(404)),
        "429": lambda _: only(no_lease, answers(429, Retry_After="1")),
        "500": lambda _: only(no_lease, answers(500)),
        "half-open connections": lambda _: only(no_lease, broken.half_open),
        "resets": lambda _: only(no_lease, broken.reset),
    },
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every period short."""
    usual = watches._settings

    def settings() -> Any:
        made = usual()
        made.watching.inactivity_timeout = 4.0
        made.networking.request_timeout = TIMEOUT
        return made

    monkeypatch.setattr(watches, "_settings", settings)
    monkeypatch.setattr(watches.JitteredForever, "longest", LONGEST_PAUSE)
    monkeypatch.setattr(watch_health, "LONGEST_PAUSE", LONGEST_PAUSE)
    monkeypatch.setattr(main, "RELISTS_APART", 1.0)
    monkeypatch.setattr(main, "_WATCHES_CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(client, "_TIMEOUT", TIMEOUT)


class Running:
    """An operator in this process."""

    def __init__(self, operator: main.App, task: asyncio.Task[None], port: int) -> None:
        self.app, self._task, self._health = operator, task, f"http://127.0.0.1:{port}/healthz"

    async def health(self) -> str:
        async with aiohttp.request("GET", self._health) as answer:
            return "" if answer.status == 200 else await answer.text()

    async def ready(self) -> bool:
        assert not self._task.done(), self._task.exception()
        return self.app._watching.is_set() and self.app._leading


@asynccontextmanager
async def running(namespace: str) -> AsyncIterator[Running]:
    """An operator of `namespace` in this process."""
    options = main.OperatorOptions(
        installation=Installation("server:1", "cpu:1", namespace),
        scope=(namespace,),
        lease_namespace=namespace,
        identity="test",
        host="127.0.0.1",
        port=free_port(),
        workers=4,
        # Operator, proxy and test share a process: on a busy machine it may stand still for longer than 10 s.
        lease=timing(60),
    )
    metrics = OperatorMetrics()
    kube = await KubeClient.connect(metrics.called)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1)) as http:
        operator = main.App(options, kube, http, metrics)
        task = asyncio.create_task(operator.run())
        yield Running(operator, task, options.port)
        assert not task.done(), task.exception()
        operator.stop()
        await asyncio.wait_for(task, patient(30))
    await kube.close()


async def of(kube: KubeClient, name: str, namespace: str) -> dict[str, int]:
    """Children of one LLMDeployment, counted by kind."""
    labels = f"{names.LABEL_NAME}={name}"
    return {kind: len(await kube.list(resource, namespace, labels=labels)) for kind, resource in CHILDREN.items()}


async def described(kube: KubeClient, namespace: str, name: str) -> bool:
    """Whether the newest spec has been carried out."""
    try:
        body = await kube.get(LLMDEPLOYMENTS, namespace, name)
        budget = await kube.get(POD_DISRUPTION_BUDGETS, namespace, name)
        deployment = await kube.get(DEPLOYMENTS, namespace, name)
    except TransientError:
        return False
    if body is None or budget is None or deployment is None:
        return False
    return bool(body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"])


@pytest.mark.parametrize("group", FAULTS)
async def test_whatever_an_api_server_does_all_is_well_soon_after(
    group: str,
    kube: KubeClient,
    plane: Any,
    llmd: Make,
    namespace: str,
    kubeconfig: Make,
    finishing: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with BreakingProxy(plane, free_port()) as proxy:
        file = await kubeconfig(namespace, proxy.url)

        async def configuration() -> Configuration:
            made = Configuration()
            await config.load_kube_config(config_file=str(file), client_configuration=made)
            return made

        monkeypatch.setattr(client, "_configuration", configuration)
        async with running(namespace) as operator:
            await eventually_async(operator.ready, 60)
            world = World(kube, namespace, llmd)
            for name, fault in FAULTS[group].items():
                await world.live_through(name, fault(proxy), proxy, operator)


class World:
    """LLMDeployments in a namespace, and what becomes of them."""

    def __init__(self, kube: KubeClient, namespace: str, llmd: Make) -> None:
        self._kube, self._namespace, self._llmd = kube, namespace, llmd

    async def live_through(self, what: str, fault: Fault, proxy: BreakingProxy, operator: Running) -> None:
        """Change, create, delete and break things during one fault, and see that all of it comes to its end."""
        kube, namespace = self._kube, self._namespace
        changed, gone, new = (f"{name}-{uuid.uuid4().hex[:6]}" for name in ("changed", "gone", "new"))
        await self._apply(changed)
        await self._apply(gone)
        await self._carried_out(changed, gone)
        usual = await of(kube, changed, namespace)
        tasks, threads = len(asyncio.all_tasks()), threading.active_count()
        async with proxy.broken(fault):
            await self._apply(changed, engine={"threads": 1})
            await self._apply(new)
            await remove(kube, POD_DISRUPTION_BUDGETS, namespace, changed)
            await remove(kube, LLMDEPLOYMENTS, namespace, gone)
            begun = time.monotonic()
            await asyncio.sleep(FAULT_SECONDS)
            since = [call for call in proxy.calls if call.at > begun]
            assert sum(call.watch for call in since) < 10 * WATCHES, f"{what}: watches are asked for in a loop"
            assert len(since) < 150 * FAULT_SECONDS, f"{what}: met by a storm"
            assert await operator.health() == "", what
        await self._carried_out(changed, new)

        async def forgotten() -> bool:
            key = Key(namespace, gone)
            return key not in operator.app._reconciler.known and operator.app._loop.load(key) is None

        await eventually_async(forgotten, 90)
        # The history keeps one revision more; the old settings go, for no pod uses them.
        more = {**usual, "ControllerRevision": usual["ControllerRevision"] + 1}
        await eventually_async(lambda: equal(lambda: of(kube, changed, namespace), more), 60)
        assert await of(kube, new, namespace) == usual, what
        body = await kube.get(LLMDEPLOYMENTS, namespace, changed)
        assert body is not None
        assert (body["metadata"]["generation"], body["spec"]["engine"]["threads"]) == (2, 1), what
        assert await operator.health() == "", what
        await eventually_async(lambda: at_most(lambda: len(asyncio.all_tasks()), tasks), 60)
        await eventually_async(lambda: at_most(threading.active_count, threads))

    async def _apply(self, name: str, **spec: Any) -> None:
        await self._kube.apply(LLMDEPLOYMENTS, self._llmd(name, **spec))

    async def _carried_out(self, *wanted: str) -> None:
        for name in wanted:
            await eventually_async(lambda name=name: described(self._kube, self._namespace, name), 90)


async def remove(kube: KubeClient, resource: Any, namespace: str, name: str) -> None:
    body = await kube.get(resource, namespace, name)
    assert body is not None
    await kube.delete(resource, namespace, name, body["metadata"]["uid"])


async def equal(question: Callable[[], Awaitable[Any]], wanted: Any) -> bool:
    return bool(await question() == wanted)


async def at_most(count: Callable[[], int], bound: int) -> bool:
    return count() <= bound
