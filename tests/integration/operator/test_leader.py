"""The Lease: one leader, hand-over, take-over of a silent one, and knowing when one's own is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.resources import LEASES
from octavo_operator.leader import LeaseLock, Timing

QUICK = Timing(duration=1.0, deadline=0.7, retry=0.1)


@pytest.fixture
def contender(kube: KubeClient, namespace: str) -> Callable[[str], LeaseLock]:
    return lambda name: LeaseLock(kube, namespace, "octavo-operator", name, time.monotonic, QUICK)


async def holder(kube: KubeClient, namespace: str) -> str:
    body = await kube.get(LEASES, namespace, "octavo-operator")
    assert body is not None
    return str(body["spec"]["holderIdentity"])


async def test_one_leads_and_the_other_waits(
    kube: KubeClient, namespace: str, contender: Callable[[str], LeaseLock]
) -> None:
    first, second = contender("first"), contender("second")
    await first.acquire()
    hold = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    done, _ = await asyncio.wait({waiting}, timeout=3 * QUICK.duration)
    assert not done
    assert await holder(kube, namespace) == "first"
    waiting.cancel()
    hold.cancel()


async def test_a_released_lease_is_taken_at_once(
    kube: KubeClient, namespace: str, contender: Callable[[str], LeaseLock]
) -> None:
    first, second = contender("first"), contender("second")
    await first.acquire()
    await first.release()
    async with asyncio.timeout(QUICK.duration):
        await second.acquire()
    assert await holder(kube, namespace) == "second"


async def test_a_silent_leader_is_replaced(
    kube: KubeClient, namespace: str, contender: Callable[[str], LeaseLock]
) -> None:
    first, second = contender("first"), contender("second")
    await first.acquire()
    async with asyncio.timeout(10):
        await second.acquire()
    assert await holder(kube, namespace) == "second"
    body = await kube.get(LEASES, namespace, "octavo-operator")
    assert body is not None
    assert body["spec"]["leaseTransitions"] == 1


async def test_a_leader_replaced_meanwhile_stops(
    kube: KubeClient, namespace: str, contender: Callable[[str], LeaseLock]
) -> None:
    first = contender("first")
    await first.acquire()
    body = await kube.get(LEASES, namespace, "octavo-operator")
    assert body is not None
    body["spec"]["holderIdentity"] = "usurper"
    await kube.replace(LEASES, body)
    async with asyncio.timeout(5):
        await first.hold()


async def test_a_leader_without_an_api_server_stops(
    connect: Callable[..., Awaitable[KubeClient]], namespace: str, kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect()
    first = LeaseLock(client, namespace, "octavo-operator", "first", time.monotonic, QUICK)
    await first.acquire()

    async def silence(*_: Any, **__: Any) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(client._api, "call_api", silence)
    async with asyncio.timeout(5):
        await first.hold()
