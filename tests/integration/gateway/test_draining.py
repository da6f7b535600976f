"""Pods that begin to drain while a gateway sends to them, which nobody has told it: nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter

import aiohttp
from tests.integration.gateway.conftest import Gateway, StartGateway
from tests.integration.gateway.test_gateway_faults import Pods, answers, client, pods, post, says
from tests.support.waiting import eventually_async

__all__ = ["client", "pods"]

CLIENTS = 64
drains = says(b"HTTP/1.1 503 Service Unavailable\r\nX-Octavo-Draining: 1\r\nContent-Length: 0\r\n\r\n", end=False)


async def test_a_burst_that_meets_pods_as_they_begin_to_drain_loses_nothing(
    start_gateway: StartGateway, pods: Pods, client: aiohttp.ClientSession
) -> None:
    leaving, staying = [await pods(answers) for _ in range(3)], await pods(answers)
    gateway = start_gateway(pods=[pod.url for pod in (*leaving, staying)])
    heard: Counter[int] = Counter()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as load:
        for _ in range(CLIENTS):
            load.create_task(ask(client, gateway, stop, heard))
        for pod in leaving:
            await eventually_async(lambda pod=pod: reached(pod.requests, 20))
            pod.behave = drains
            enough = heard.total() + 200
            await eventually_async(lambda enough=enough: reached(heard.total(), enough))
        stop.set()
    assert set(heard) == {200}
    assert gateway.metric("octavo_gateway_retries_total") >= len(leaving)


async def ask(client: aiohttp.ClientSession, gateway: Gateway, stop: asyncio.Event, heard: Counter[int]) -> None:
    while not stop.is_set():
        async with post(client, gateway) as response:
            await response.read()
            heard[response.status] += 1


async def reached(count: int, wanted: int) -> bool:
    return count >= wanted
