"""The API server and its store are killed, stopped and started again under a running operator."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.integration.operator.breaking_proxy import BreakingProxy
from tests.support.ports import free_port
from tests.support.waiting import eventually_async, patient

from localcluster import ClusterError, ControlPlane, control_plane
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import KubeError
from octavo_operator.kube.resources import LEASES, LLMDEPLOYMENTS, POD_DISRUPTION_BUDGETS, Resource

Json = dict[str, Any]
Make = Callable[..., Any]

LEASE_SECONDS = 6
AWAY_SECONDS = 5.0
ROOT = Path(__file__).resolve().parents[3]
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """An etcd and a kube-apiserver that nobody else depends on."""
    try:
        with control_plane() as running:
            yield running
    except ClusterError as error:
        pytest.skip(f"no control plane: {error}")


def send(plane: ControlPlane, program: str, number: int) -> None:
    """Signal one component of this control plane, which is the one whose command line names its folder."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if Path(command[0]).name == program and any(str(plane.data) in part for part in command):
            os.kill(int(folder.name), number)
            return
    pytest.fail(f"no {program} of {plane.data}")


async def carried_out(kube: KubeClient, namespace: str, name: str) -> bool:
    """Whether the newest spec has been carried out and nothing is missing."""
    try:
        body = await kube.get(LLMDEPLOYMENTS, namespace, name)
        budget = await kube.get(POD_DISRUPTION_BUDGETS, namespace, name)
    except KubeError:
        return False
    if body is None or budget is None:
        return False
    return bool(body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"])


async def answering(kube: KubeClient, namespace: str) -> bool:
    try:
        await kube.list(LLMDEPLOYMENTS, namespace)
    except KubeError:
        return False
    return True


async def test_an_api_server_that_is_killed_and_comes_back(
    plane: ControlPlane, kube: KubeClient, llmd: Make, namespace: str, start: Make
) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd())
    operator = await start(lease=60)
    await eventually_async(lambda: carried_out(kube, namespace, "tiny"))
    for threads in (1, 2):
        send(plane, "kube-apiserver", signal.SIGKILL)
        await eventually_async(lambda: answering(kube, namespace), 120)
        # The new process remembers no history: every watch has to read everything anew.
        budget = await kube.get(POD_DISRUPTION_BUDGETS, namespace, "tiny")
        assert budget is not None
        await kube.delete(POD_DISRUPTION_BUDGETS, namespace, "tiny", budget["metadata"]["uid"])
        await kube.apply(LLMDEPLOYMENTS, llmd(engine={"threads": threads}))
        await eventually_async(lambda: carried_out(kube, namespace, "tiny"), 120)
        assert operator.process.returncode is None, operator.log.read_text()
        assert await operator.asks("GET", "/healthz") == 200


@pytest.mark.parametrize("program", ["etcd", "kube-apiserver"])
async def test_silence_for_longer_than_the_lease_lasts(
    program: str, plane: ControlPlane, kube: KubeClient, llmd: Make, namespace: str, start: Make
) -> None:
    await kube.apply(LLMDEPLOYMENTS, llmd())
    first = await start("first", lease=LEASE_SECONDS)
    standby = await start("standby", lease=LEASE_SECONDS)
    await eventually_async(lambda: carried_out(kube, namespace, "tiny"))
    send(plane, program, signal.SIGSTOP)
    try:
        # Who cannot renew ends, and is started again by its kubelet.
        assert await asyncio.wait_for(first.process.wait(), patient(60)) == 1
        assert await standby.asks("GET", "/healthz") == 200
        again = await start("first", wait=False, lease=LEASE_SECONDS)
    finally:
        send(plane, program, signal.SIGCONT)
    await eventually_async(lambda: answering(kube, namespace), 120)
    await kube.apply(LLMDEPLOYMENTS, llmd(engine={"threads": 1}))
    await eventually_async(lambda: carried_out(kube, namespace, "tiny"), 120)
    await eventually_async(again.ready, 60)
    assert standby.process.returncode is None, standby.log.read_text()
    lease = await kube.get(LEASES, namespace, "octavo-operator")
    assert lease is not None
    leading = [name for name, each in (("standby", standby), ("first", again)) if await each.leads()]
    assert leading == [lease["spec"]["holderIdentity"]]


async def test_a_definition_that_is_deleted_and_comes_back(
    plane: ControlPlane, kube: KubeClient, llmd: Make, namespace: str, start: Make
) -> None:
    async with BreakingProxy(plane, free_port()) as proxy:
        await kube.apply(LLMDEPLOYMENTS, llmd())
        operator = await start(server=proxy.url, lease=60)
        await eventually_async(lambda: carried_out(kube, namespace, "tiny"))
        crd = yaml.safe_load((ROOT / "crds/llmdeployments.octavo.dev.yaml").read_text())
        there = await kube.get(CRDS, None, crd["metadata"]["name"])
        await kube.delete(CRDS, None, crd["metadata"]["name"], there["metadata"]["uid"])

        async def gone() -> bool:
            return not await answering(kube, namespace)

        async def forgotten() -> bool:
            return await operator.asks("POST", "/v1/octavo/wake", json={"namespace": namespace, "name": "tiny"}) == 404

        async def said() -> int:
            return operator.log.read_text().count("the CustomResourceDefinition")

        await eventually_async(gone)
        begun = time.monotonic()
        await eventually_async(forgotten, 60)
        await eventually_async(said, 60)
        # That nothing happens in a loop can only be seen by waiting.
        await asyncio.sleep(AWAY_SECONDS)
        seconds = time.monotonic() - begun
        calls = [call for call in proxy.calls if call.at > begun and "/llmdeployments" in call.path]
        assert len(calls) < 10 + 2 * seconds, f"{len(calls)} in {seconds:.0f} s"
        assert operator.process.returncode is None, operator.log.read_text()
        assert await operator.asks("GET", "/healthz") == 200
        assert await said() == 1

        await kube.apply(CRDS, {**crd, "metadata": {**crd["metadata"], "namespace": None}})
        await eventually_async(lambda: answering(kube, namespace), 60)
        # Another name: here nobody collects the children of the first, which is gone.
        await kube.apply(LLMDEPLOYMENTS, llmd("again"))
        await eventually_async(lambda: carried_out(kube, namespace, "again"), 120)
        assert operator.process.returncode is None, operator.log.read_text()
        assert await operator.asks("GET", "/healthz") == 200
