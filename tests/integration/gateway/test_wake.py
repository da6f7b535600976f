"""Operator and gateway together, without a node: a held request brings a replica."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.integration.operator.jobs import finish_jobs
from tests.support.ports import free_port
from tests.support.waiting import eventually_async, patient

from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.resources import DEPLOYMENTS, LLMDEPLOYMENTS, SERVICES


@pytest.fixture
async def start(plane: Any, tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[None]]]:
    """Starts programs as the administrator; they end with the test."""
    processes = []

    async def run(module: str, *arguments: str) -> None:
        out = (tmp_path / f"{module}.log").open("wb")
        command = [sys.executable, "-m", module, *arguments]
        environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}
        processes.append(await asyncio.create_subprocess_exec(*command, env=environment, stdout=out, stderr=out))

    yield run
    for process in processes:
        process.kill()
        await process.wait()


async def test_a_held_request_wakes_a_model_from_zero(
    kube: KubeClient, namespace: str, start: Callable[..., Awaitable[None]], tmp_path: Path
) -> None:
    wake, port, admin = free_port(), free_port(), free_port()
    await start(
        "octavo_operator", "--server-image", "server:1", "--server-cpu-image", "cpu:1", "--namespace-scope", namespace,
        "--namespace", namespace, "--host", "127.0.0.1", "--port", str(wake), "--identity", "one",
    )  # fmt: skip
    await start(
        "octavo_gateway", "--namespace", namespace, "--host", "127.0.0.1", "--port", str(port),
        "--admin-host", "127.0.0.1", "--admin-port", str(admin), "--operator-service", f"127.0.0.1:{wake}",
    )  # fmt: skip
    spec = {
        "model": {"uri": "oci://registry.local/models/tiny:1"},
        "resources": {"gpu": {"count": 0}},
        "autoscaling": {"mode": "Builtin", "minReplicas": 0, "maxReplicas": 2},
    }
    head = {"apiVersion": LLMDEPLOYMENTS.api_version, "kind": LLMDEPLOYMENTS.kind}
    tiny = {**head, "metadata": {"name": "tiny", "namespace": namespace}}
    # A new model starts with one replica; suspended and resumed it is at zero without waiting to be idle.
    await kube.apply(LLMDEPLOYMENTS, {**tiny, "spec": {**spec, "suspend": True}})

    async def replicas() -> int | None:
        body = await kube.get(DEPLOYMENTS, namespace, "tiny")
        return body["spec"]["replicas"] if body else None

    async def holds() -> bool:
        body = await kube.get(SERVICES, namespace, "tiny")
        return bool(body and body["metadata"]["annotations"]["octavo.dev/hold"] == "true")

    async def none() -> bool:
        # Nobody else runs Jobs here: the one that looks at the model ends at once.
        await finish_jobs(kube, namespace)
        return await replicas() == 0

    async def one() -> bool:
        return await replicas() == 1

    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:

        async def listed() -> bool:
            with suppress(aiohttp.ClientError):
                async with client.get("/v1/models/tiny") as answer:
                    return answer.status == 200
            return False

        await eventually_async(listed, 60)
        await eventually_async(none, 60)
        async with client.post("/v1/completions", json={"model": "tiny"}) as refused:
            assert refused.status == 503
        await kube.apply(LLMDEPLOYMENTS, {**tiny, "spec": {**spec, "suspend": False}})
        await eventually_async(holds, 60)
        assert await replicas() == 0
        calls = 1

        async def held() -> aiohttp.ClientResponse:
            # The gateway hears of the Service's annotation a moment after the API server has it.
            nonlocal calls
            async with asyncio.timeout(patient(90)):
                while True:
                    calls += 1
                    body = {"model": "tiny", "stream": True, "messages": []}
                    response = await client.post("/v1/chat/completions", json=body)
                    if response.status != 503:
                        return response
                    response.close()
                    await asyncio.sleep(0.1)

        call = asyncio.create_task(held())
        await eventually_async(one, 60)
        response = await call
        assert response.status == 200
        assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        response.close()

        async def nobody_held() -> bool:
            async with client.get(f"http://127.0.0.1:{admin}/v1/octavo/load") as answer:
                (model,) = (await answer.json())["models"]
            return bool(model["held"] == 0 and model["arrivals"] == calls)

        await eventually_async(nobody_held)
    assert await replicas() == 1
