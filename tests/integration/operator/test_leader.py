"""The Lease: one leader, hand-over, take-over of a silent one, and knowing when one's own is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.waiting import eventually_async, patient

from octavo_operator.app.leader import LeaseLock, Timing
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import FencedError
from octavo_operator.kube.resources import CONFIG_MAPS, LEASES

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
    async with asyncio.timeout(patient(10)):
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
    async with asyncio.timeout(patient(5)):
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
    async with asyncio.timeout(patient(5)):
        await first.hold()


class Slow:
    """A client whose writes are answered late, after they were carried out."""

    def __init__(self, client: KubeClient, seconds: float) -> None:
        self._client, self._seconds = client, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def replace(self, resource: Any, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self._client.replace(resource, body)
        await asyncio.sleep(self._seconds)
        return answer


async def test_time_counts_from_the_write_and_not_from_its_answer(kube: KubeClient, namespace: str) -> None:
    await LeaseLock(kube, namespace, "octavo-operator", "first", time.monotonic, QUICK).acquire()
    again = LeaseLock(Slow(kube, 0.5), namespace, "octavo-operator", "first", time.monotonic, QUICK)  # type: ignore[arg-type]
    await again.acquire()
    assert again.left() <= QUICK.deadline - 0.5


async def test_nothing_is_written_once_the_time_is_over(
    kube: KubeClient, namespace: str, contender: Callable[[str], LeaseLock]
) -> None:
    first = contender("first")
    writer = kube.fenced(first.left)
    settings = {"metadata": {"name": "x", "namespace": namespace}, "data": {}}
    with pytest.raises(FencedError, match="not sent"):
        await writer.create(CONFIG_MAPS, settings)
    await first.acquire()
    await writer.create(CONFIG_MAPS, settings)

    async def over() -> bool:
        return first.left() <= 0

    # As a process that was stopped: the time went by, and nobody has looked at the Lease yet.
    await eventually_async(over)
    with pytest.raises(FencedError, match="not sent"):
        await writer.replace(CONFIG_MAPS, settings)
    assert await writer.get(CONFIG_MAPS, namespace, "x") is not None
    await first.acquire()
    await first.release()
    with pytest.raises(FencedError):
        await writer.replace(CONFIG_MAPS, settings)


async def test_a_write_on_its_way_is_waited_for(kube: KubeClient, namespace: str) -> None:
    writer = kube.fenced(lambda: 10.0)
    settings = {"metadata": {"name": "x", "namespace": namespace}, "data": {}}
    answered = False
    send = writer._send

    async def slow(*arguments: Any) -> dict[str, Any]:
        nonlocal answered
        answer = await send(*arguments)
        await asyncio.sleep(0.3)
        answered = True
        return answer

    writer._send = slow  # type: ignore[method-assign]
    write = asyncio.create_task(writer.create(CONFIG_MAPS, settings))
    await asyncio.sleep(0)
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    assert answered


async def test_a_deleted_lease_is_made_again_by_its_holder_alone(
    kube: KubeClient, namespace: str, contender: Callable[[str], LeaseLock]
) -> None:
    first, second = contender("first"), contender("second")
    await first.acquire()
    hold, waiting = asyncio.create_task(first.hold()), asyncio.create_task(second.acquire())
    for _ in range(5):
        await asyncio.sleep(2 * QUICK.retry)
        body = await kube.get(LEASES, namespace, "octavo-operator")
        assert body is not None
        await kube.delete(LEASES, namespace, "octavo-operator", body["metadata"]["uid"])
        await eventually_async(lambda: kube.get(LEASES, namespace, "octavo-operator"))
        assert await holder(kube, namespace) == "first"
    assert not hold.done()
    assert not waiting.done()
    hold.cancel()
    waiting.cancel()


async def test_a_lease_given_back_in_between_is_not_ours_any_more(
    kube: KubeClient, namespace: str, contender: Callable[[str], LeaseLock]
) -> None:
    first = contender("first")
    await first.acquire()
    body = await kube.get(LEASES, namespace, "octavo-operator")
    assert body is not None
    body["spec"]["holderIdentity"] = ""
    await kube.replace(LEASES, body)
    async with asyncio.timeout(patient(10)):
        await first.hold()
    assert first.left() <= 0
    assert await holder(kube, namespace) == ""
