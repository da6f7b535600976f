"""Two processes, and a leader that is cut off or stopped: it writes nothing once the other does.

Each process has a proxy of its own, and both note on one clock when which request came and when the API server had
answered it: no two clocks are compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.integration.operator import breaking_proxy as broken
from tests.integration.operator.breaking_proxy import BreakingProxy, Call
from tests.support.ports import free_port
from tests.support.waiting import eventually_async, patient

from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.resources import DEPLOYMENTS, LEASES, LLMDEPLOYMENTS

Json = dict[str, Any]
Make = Callable[..., Any]

LEASE_SECONDS = 10


@pytest.fixture
async def proxies(plane: Any) -> AsyncIterator[tuple[BreakingProxy, BreakingProxy]]:
    async with BreakingProxy(plane, free_port()) as one, BreakingProxy(plane, free_port()) as two:
        yield one, two


@pytest.fixture
async def restless(kube: KubeClient, llmd: Make, namespace: str) -> AsyncIterator[None]:
    """A person who changes a spec many times a second: there is always something to write."""

    async def change() -> None:
        number = 0
        while True:
            number += 1
            await kube.apply(LLMDEPLOYMENTS, llmd(engine={"threads": 1 + number % 8}))
            await asyncio.sleep(0.05)

    task = asyncio.create_task(change())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def writes(proxy: BreakingProxy) -> list[Call]:
    """Of children and status: an Event informs and decides nothing, and the Lease is what all is about."""
    return [c for c in proxy.calls if c.method != "GET" and "/leases" not in c.path and "/events" not in c.path]


@pytest.mark.parametrize("how", ["cut off", "stopped"])
async def test_the_old_leader_writes_nothing_once_the_new_one_does(
    how: str,
    kube: KubeClient,
    namespace: str,
    proxies: tuple[BreakingProxy, BreakingProxy],
    start: Make,
    restless: None,
) -> None:
    one = await start("one", server=proxies[0].url, lease=LEASE_SECONDS)
    await eventually_async(one.leads)
    two = await start("two", server=proxies[1].url, lease=LEASE_SECONDS)
    await eventually_async(lambda: kube.get(DEPLOYMENTS, namespace, "tiny"))
    assert not writes(proxies[1])

    if how == "cut off":
        proxies[0].fault = broken.half_open
        await proxies[0].cut()
    else:
        one.process.send_signal(signal.SIGSTOP)

    async def taken_over() -> bool:
        return bool(writes(proxies[1]))

    await eventually_async(taken_over, 60)
    if how == "stopped":
        one.process.send_signal(signal.SIGCONT)
    assert await asyncio.wait_for(one.process.wait(), patient(60)) == 1
    # What the old one still sends after its time: nothing at all, delivered or not.
    first = writes(proxies[1])[0].at
    assert [call for call in writes(proxies[0]) if call.at > first] == []
    assert [call for call in writes(proxies[0]) if first < call.done < float("inf")] == []
    assert writes(proxies[0]), "the old one did write while it led"

    lease = await kube.get(LEASES, namespace, "octavo-operator")
    assert lease is not None
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("two", 1)
    assert await two.leads()
    assert "lost" in one.log.read_text()


async def test_a_leader_that_is_told_to_end_hands_over_at_once_and_without_overlap(
    kube: KubeClient,
    namespace: str,
    proxies: tuple[BreakingProxy, BreakingProxy],
    start: Make,
    restless: None,
) -> None:
    # So long a Lease that nobody could wait for it to run out.
    one = await start("one", server=proxies[0].url, lease=300)
    await eventually_async(one.leads)
    two = await start("two", server=proxies[1].url, lease=300)
    await eventually_async(lambda: kube.get(DEPLOYMENTS, namespace, "tiny"))
    one.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(one.process.wait(), patient(60)) == 0
    await eventually_async(two.leads, 60)

    async def writing() -> bool:
        return bool(writes(proxies[1]))

    await eventually_async(writing)
    first = writes(proxies[1])[0].at
    assert [call for call in writes(proxies[0]) if call.done > first] == []
