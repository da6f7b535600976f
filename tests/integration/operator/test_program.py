"""The program itself, with the rights of its RBAC rules and no others: watches, hand-over, kills, scaling on load."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web
from tests.support.waiting import eventually_async, patient

from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.resources import DEPLOYMENTS, LEASES, LLMDEPLOYMENTS, POD_DISRUPTION_BUDGETS, PODS
from octavo_protocol.load import LoadReport, encode

Json = dict[str, Any]
Make = Callable[..., Json]

# Any address of the loopback network may be a pod's.
POD_IP = "127.80.0.1"


async def test_it_serves_with_these_rights_and_repairs_at_once(
    kube: KubeClient, llmd: Make, namespace: str, start: Make
) -> None:
    operator = await start()
    await kube.apply(LLMDEPLOYMENTS, llmd())

    async def described() -> bool:
        body = await kube.get(LLMDEPLOYMENTS, namespace, "tiny")
        return bool(body and body.get("status", {}).get("observedGeneration"))

    await eventually_async(described)
    budget = await kube.get(POD_DISRUPTION_BUDGETS, namespace, "tiny")
    assert budget is not None
    await kube.delete(POD_DISRUPTION_BUDGETS, namespace, "tiny", budget["metadata"]["uid"])
    await eventually_async(lambda: kube.get(POD_DISRUPTION_BUDGETS, namespace, "tiny"))
    assert await operator.asks("GET", "/healthz") == 200
    operator.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(operator.process.wait(), patient(20)) == 0
    lease = await kube.get(LEASES, namespace, "octavo-operator")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == ""
    assert "refused" not in operator.log.read_text()
    assert "(403)" not in operator.log.read_text()


async def test_killed_by_the_kernel_another_takes_over_and_finishes(
    kube: KubeClient, llmd: Make, namespace: str, start: Make
) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd())
    # The first write takes the Lease; the fourth would be the third child.
    first = await start("first", wait=False, OCTAVO_FAILPOINTS="kube.write:exit@4")
    assert await asyncio.wait_for(first.process.wait(), patient(60)) == 137
    second = await start("second")
    wake = {"json": {"namespace": namespace, "name": "tiny"}}
    lease = await kube.get(LEASES, namespace, "octavo-operator")
    assert lease is not None
    if lease["spec"]["holderIdentity"] == "first":
        assert await second.asks("POST", "/v1/octavo/wake", **wake) == 421
    await eventually_async(lambda: kube.get(DEPLOYMENTS, namespace, "tiny"), 60)

    async def woken() -> bool:
        return await second.asks("POST", "/v1/octavo/wake", **wake) == 202

    await eventually_async(woken)


async def test_load_of_a_pod_becomes_replicas_and_history(
    kube: KubeClient, llmd: Make, namespace: str, start: Make
) -> None:
    builtin = {"mode": "Builtin", "maxReplicas": 3}
    await kube.apply(LLMDEPLOYMENTS, llmd(autoscaling=builtin))
    await start()
    deployment = await eventually_async(lambda: kube.get(DEPLOYMENTS, namespace, "tiny"))
    async with report_server():
        await make_ready_pod(kube, namespace, deployment["spec"]["template"])

        async def scaled() -> Json | None:
            body = await kube.get(LLMDEPLOYMENTS, namespace, "tiny")
            found: Json = (body or {}).get("status", {})
            return found if found.get("autoscaling", {}).get("history") and found.get("load") else None

        status = await eventually_async(scaled, 60)
    (change, *_) = status["autoscaling"]["history"]
    assert (change["from"], change["to"] > 1) == (1, True)
    assert change["inputs"]
    assert status["desiredReplicas"] > 1
    deployment = await kube.get(DEPLOYMENTS, namespace, "tiny")
    assert deployment is not None
    assert deployment["spec"]["replicas"] == status["desiredReplicas"]
    body = await kube.get(LLMDEPLOYMENTS, namespace, "tiny")
    assert body is not None
    assert body["spec"]["replicas"] == 1


@contextlib.asynccontextmanager
async def report_server() -> AsyncIterator[None]:
    """A pod's admin port, whose pool is full."""
    report = LoadReport(
        sequence=1, start_time=1.0, model="tiny", block_size=32, blocks_total=100, blocks_pinned=98, blocks_cached=0,
        running=8, waiting=6, waiting_tokens=600, uncached_prompt_tokens=600, oldest_wait=2.0, preemptions=0,
        requests=20, prompt_tokens=100, generation_tokens=100, prefix_hit_tokens=0, max_running=8,
        max_batched_tokens=512, max_waiting=64, ready=True, draining=False, cold_start=3.0,
    )  # fmt: skip

    async def load(_: web.Request) -> web.Response:
        return web.Response(body=encode(report))

    app = web.Application()
    app.router.add_get("/v1/octavo/load", load)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, POD_IP, 9000).start()
    yield
    await runner.cleanup()


async def make_ready_pod(kube: KubeClient, namespace: str, template: Json) -> None:
    metadata = {"name": "tiny-1", "namespace": namespace, "labels": template["metadata"]["labels"]}
    await kube.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    at = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    server = {"name": "server", "image": "x", "imageID": "", "ready": True, "restartCount": 0, "state": running}
    conditions = [{"type": kind, "status": "True", **at} for kind in ("PodScheduled", "Ready")]
    status = {"phase": "Running", "podIP": POD_IP, "conditions": conditions, "containerStatuses": [server]}
    await kube.apply_status(PODS, namespace, "tiny-1", status)
