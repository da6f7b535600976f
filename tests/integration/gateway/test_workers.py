"""Several worker processes: one port, one report, one set of metrics, whatever happens to any of them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from aiohttp import web
from tests.integration.gateway.conftest import Gateway, RecordingPod, StartGateway
from tests.support.ports import free_port, free_ports
from tests.support.waiting import eventually_async

ASK = {"model": "m", "messages": []}
REQUESTS = "octavo_gateway_requests_total"


@pytest.fixture
def pod() -> Iterator[RecordingPod]:
    pod = RecordingPod()
    yield pod
    pod.close()


@pytest.fixture
async def gateway(start_gateway: StartGateway, pod: RecordingPod) -> AsyncIterator[Gateway]:
    gateway = start_gateway("--workers", "3", "--drain-delay", "0", pods=[f"http://127.0.0.1:{pod.port}"])
    await eventually_async(lambda: listening(gateway, 3))
    yield gateway
    gateway.process.terminate()
    await asyncio.to_thread(gateway.process.wait, 60)


def workers(gateway: Gateway) -> list[psutil.Process]:
    return psutil.Process(gateway.process.pid).children()


async def listening(gateway: Gateway, count: int) -> bool:
    """Whether so many workers answer on second ports of their own."""
    answers = 0
    for number in range(count):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.admin_port + 1 + number)
        except OSError:
            continue
        writer.close()
        answers += 1
    return answers == count


async def ask(gateway: Gateway, **headers: str) -> int:
    """Over a connection of its own, so that the kernel picks a worker."""
    async with (
        aiohttp.ClientSession() as client,
        client.post(gateway.url + "/v1/chat/completions", json=ASK, headers=headers) as response,
    ):
        await response.read()
        return int(response.status)


async def arrivals(gateway: Gateway) -> int:
    models: Any = (await asyncio.to_thread(gateway.report))["models"]
    return int(models[0]["arrivals"]) if models else 0


async def test_all_of_them_answer_and_one_report_adds_them_up(gateway: Gateway, pod: RecordingPod) -> None:
    assert await asyncio.gather(*(ask(gateway) for _ in range(60))) == [200] * 60
    assert await arrivals(gateway) == 60 == len(pod.seen)
    assert await asyncio.to_thread(gateway.metric, REQUESTS) == 60
    first = await asyncio.to_thread(gateway.report)
    second = await asyncio.to_thread(gateway.report)
    assert second["start_time"] == first["start_time"]
    assert int(str(second["sequence"])) > int(str(first["sequence"]))
    shares = []
    for number in range(3):
        url = f"http://127.0.0.1:{gateway.admin_port + 1 + number}/v1/octavo/load"
        async with aiohttp.ClientSession() as client, client.get(url) as response:
            shares.append((await response.json())["models"][0]["arrivals"])
    assert sum(shares) == 60
    assert sum(share > 0 for share in shares) > 1, "one worker got everything"


async def test_a_worker_that_dies_comes_back_and_no_counter_falls(gateway: Gateway, pod: RecordingPod) -> None:
    assert await asyncio.gather(*(ask(gateway) for _ in range(30))) == [200] * 30
    assert await arrivals(gateway) == 30
    before = {worker.pid for worker in workers(gateway)}
    victim = workers(gateway)[0]
    victim.send_signal(signal.SIGKILL)

    async def replaced() -> bool:
        return victim.pid not in {worker.pid for worker in workers(gateway)} and await listening(gateway, 3)

    await eventually_async(replaced, 60)
    assert len({worker.pid for worker in workers(gateway)} & before) == 2
    assert await arrivals(gateway) == 30
    assert await asyncio.gather(*(ask(gateway) for _ in range(30))) == [200] * 30
    assert await arrivals(gateway) == 60
    assert await asyncio.to_thread(gateway.metric, REQUESTS) == 60
    assert [line["message"] for line in gateway.logged() if line["level"] == "error"] == ["worker 0 ended with code -9"]


async def test_streams_of_all_workers_finish_when_it_is_told_to_end(start_gateway: StartGateway) -> None:
    go_on = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await go_on.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", stream)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    gateway = start_gateway("--workers", "2", "--drain-delay", "0", pods=[f"http://127.0.0.1:{runner.addresses[0][1]}"])
    await eventually_async(lambda: listening(gateway, 2))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        url = gateway.url + "/v1/chat/completions"
        answers = [await client.post(url, json={**ASK, "stream": True}).__aenter__() for _ in range(16)]
        for answer in answers:
            assert await answer.content.readuntil(b"\n\n") == b"data: 1\n\n"
        gateway.process.terminate()

        async def closed() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", gateway.port)) != 0

        await eventually_async(closed)
        assert gateway.process.poll() is None
        assert len(workers(gateway)) == 2
        go_on.set()
        for answer in answers:
            assert await answer.read() == b"data: [DONE]\n\n"
    assert await asyncio.to_thread(gateway.process.wait, 60) == 0
    await runner.cleanup()


async def test_a_limit_holds_for_all_workers_together(
    start_gateway: StartGateway, pod: RecordingPod, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("keys:\n- {name: a, key: alpha, requestsPerMinute: 30}\n")
    own = ("--workers", "3", "--drain-delay", "0", "--api-key-file", str(keys))
    gateway = start_gateway(*own, pods=[f"http://127.0.0.1:{pod.port}"])
    await eventually_async(lambda: listening(gateway, 3))
    began = asyncio.get_running_loop().time()
    codes: list[int] = []
    for _ in range(4):
        codes += await asyncio.gather(*(ask(gateway, Authorization="Bearer alpha") for _ in range(30)))
    passed = asyncio.get_running_loop().time() - began
    assert set(codes) == {200, 429}
    # The limit, what the bucket gained meanwhile, and at worst the parts of two that have not heard of the third yet.
    assert codes.count(200) <= 30 + passed / 2 + 2 * 30 / 3 + 3, "each worker had a limit of its own"


async def test_none_outlives_a_parent_that_was_killed(start_gateway: StartGateway, pod: RecordingPod) -> None:
    gateway = start_gateway("--workers", "2", "--drain-delay", "0", pods=[f"http://127.0.0.1:{pod.port}"])
    await eventually_async(lambda: listening(gateway, 2))
    children = workers(gateway)
    gateway.process.kill()

    async def gone() -> bool:
        return not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)

    await eventually_async(gone)


def test_it_ends_when_its_workers_cannot_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "octavo_gateway", "--workers", "2", "--drain-delay", "0"]
        command += ["--port", str(taken.getsockname()[1]), "--admin-port", str(free_ports(3))]
        command += ["--static-endpoints", "m=http://127.0.0.1:1"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ, check=False)
    assert found.returncode != 0
    assert "worker 0 ended" in found.stderr or "worker 1 ended" in found.stderr


@pytest.mark.parametrize("count", ["0", "33", "two", "-1"])
def test_a_number_of_workers_that_is_none(count: str) -> None:
    command = [sys.executable, "-m", "octavo_gateway", "--port", str(free_port()), "--workers", count]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 2
    assert "from 1 to 32" in found.stderr
