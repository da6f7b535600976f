"""Pods that misbehave, clients that do, and a gateway that is restarted: nothing is lost that need not be."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import psutil
import pytest
from tests.integration.gateway.conftest import Gateway, StartGateway
from tests.support.waiting import eventually_async

Behave = Callable[["Pod", asyncio.StreamWriter], Awaitable[None]]

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"n": 1}\n\n'
DONE = b"data: [DONE]\n\n"
ASK = {"model": "m", "messages": []}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class Pod:
    """A pod on a plain socket that does what it is told with each request."""

    behave: Behave
    requests: int = 0
    gone: int = 0
    sent: int = 0
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
                await reader.readexactly(length)
                self.requests += 1
                told = asyncio.create_task(self.behave(self, writer))
                lost = asyncio.create_task(reader.read(1))
                await asyncio.wait([told, lost], return_when=asyncio.FIRST_COMPLETED)
                if not told.done():
                    self.gone += 1
                    told.cancel()
                    break
                lost.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await lost
                await told
        writer.close()


async def answers(_: Pod, writer: asyncio.StreamWriter) -> None:
    writer.write(PLAIN)


async def streams(pod: Pod, writer: asyncio.StreamWriter) -> None:
    """An event, the rest when it is told."""
    writer.write(STREAM + chunk(EVENT))
    await pod.go_on.wait()
    writer.write(chunk(EVENT) + chunk(DONE) + b"0\r\n\r\n")


async def is_silent(pod: Pod, _: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def resets(_: Pod, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def says(data: bytes, *, end: bool = True) -> Behave:
    async def behave(_: Pod, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if end:
            await writer.drain()
            writer.close()

    return behave


@pytest.fixture
async def pods() -> AsyncIterator[Callable[[Behave], Awaitable[Pod]]]:
    async with AsyncExitStack() as stack:

        async def make(behave: Behave) -> Pod:
            pod = Pod(behave)
            server = await asyncio.start_server(pod.serve, "127.0.0.1", 0)
            stack.callback(server.close)
            pod.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return pod

        yield make


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), read_bufsize=4096) as client:
        yield client


def post(client: aiohttp.ClientSession, gateway: Gateway, **fields: Any) -> Any:
    return client.post(gateway.url + "/v1/chat/completions", json=ASK | fields)


async def model(gateway: Gateway) -> dict[str, Any]:
    report = await asyncio.to_thread(gateway.report)
    (found,) = report["models"]  # type: ignore[misc]
    return found  # type: ignore[no-any-return]


async def at_rest(gateway: Gateway) -> bool:
    found = await model(gateway)
    return bool(found["in_flight"] == 0 and found["held"] == 0)


def warnings(gateway: Gateway) -> list[str]:
    return [line["message"] for line in gateway.logged() if line["level"] in {"warning", "error"}]


Pods = Callable[[Behave], Awaitable[Pod]]


@pytest.mark.parametrize("behave", [resets, says(b"")], ids=["reset", "closed"])
async def test_a_pod_that_hangs_up_before_it_answers_costs_nothing(
    start_gateway: StartGateway, pods: Pods, client: aiohttp.ClientSession, behave: Behave
) -> None:
    bad, good = await pods(behave), await pods(answers)
    gateway = start_gateway(pods=[bad.url, good.url])
    for _ in range(5):
        async with post(client, gateway) as response:
            assert response.status == 200
    assert good.requests == 5
    assert await asyncio.to_thread(gateway.metric, "octavo_gateway_retries_total") == bad.requests


GARBAGE = {
    "no-http": b"\x00\x01garbage\r\n\r\n",
    "two-lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}}",
    "long-header": b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 100_000 + b"\r\n\r\n",
    "endless-headers": b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 100_000,
    "status": b"HTTP/1.1 9999 OK\r\n\r\n",
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_becomes_an_error(
    start_gateway: StartGateway, pods: Pods, client: aiohttp.ClientSession, name: str
) -> None:
    pod = await pods(says(GARBAGE[name]))
    gateway = start_gateway(pods=[pod.url])
    async with post(client, gateway) as response:
        assert response.status == 502
        assert (await response.json())["error"]["code"] in {"bad_gateway", "replica_lost"}
    assert pod.requests == 1
    await eventually_async(lambda: at_rest(gateway))


async def test_an_answer_too_many_is_nobodys(
    start_gateway: StartGateway, pods: Pods, client: aiohttp.ClientSession
) -> None:
    """What a pod sends unasked must not become the answer to the next client."""
    secret = PLAIN.replace(b"{}", b"42")
    pod = await pods(says(PLAIN + secret + secret, end=False))
    gateway = start_gateway(pods=[pod.url])
    for _ in range(10):
        async with post(client, gateway) as response:
            assert (response.status, await response.read()) == (200, b"{}")


@pytest.mark.parametrize("rest", [chunk(EVENT)[:9], b"zz\r\n", b"3\r\nabcd"], ids=["cut", "no-chunk", "long-chunk"])
async def test_a_stream_that_breaks_says_so(
    start_gateway: StartGateway, pods: Pods, client: aiohttp.ClientSession, rest: bytes
) -> None:
    async def breaks(pod: Pod, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + chunk(EVENT))
        await pod.go_on.wait()
        writer.write(rest)
        await writer.drain()
        writer.close()

    pod = await pods(breaks)
    gateway = start_gateway(pods=[pod.url])
    async with post(client, gateway, stream=True) as response:
        assert await response.content.readuntil(b"\n\n") == EVENT
        pod.go_on.set()
        last = await response.read()
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "replica_lost"
    assert len(warnings(gateway)) == 1
    assert await asyncio.to_thread(gateway.metric, "octavo_gateway_broken_streams_total") == 1
    await eventually_async(lambda: at_rest(gateway))


async def test_a_whole_answer_that_breaks_is_none(
    start_gateway: StartGateway, pods: Pods, client: aiohttp.ClientSession
) -> None:
    pod = await pods(says(PLAIN.replace(b"Content-Length: 2", b"Content-Length: 9")))
    gateway = start_gateway(pods=[pod.url])
    async with post(client, gateway) as response:
        assert response.status == 502
        assert (await response.json())["error"]["code"] == "replica_lost"
    assert pod.requests == 1


async def test_a_pod_that_answers_byte_by_byte_is_heard_out(
    start_gateway: StartGateway, pods: Pods, client: aiohttp.ClientSession
) -> None:
    async def slowly(_: Pod, writer: asyncio.StreamWriter) -> None:
        for byte in STREAM + chunk(EVENT) + chunk(DONE) + b"0\r\n\r\n":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.001)

    pod = await pods(slowly)
    gateway = start_gateway(pods=[pod.url])
    async with post(client, gateway, stream=True) as response:
        chunks = [part async for part in response.content.iter_any()]
    assert b"".join(chunks) == EVENT + DONE
    assert all(part.endswith(b"\n\n") for part in chunks)


async def test_a_silent_pod_keeps_only_those_who_wait_for_it(
    start_gateway: StartGateway, pods: Pods, client: aiohttp.ClientSession
) -> None:
    silent, good = await pods(is_silent), await pods(answers)
    gateway = start_gateway(pods=[silent.url, good.url])
    calls = [asyncio.create_task(answered(client, gateway)) for _ in range(40)]

    async def settled() -> bool:
        return sum(call.done() for call in calls) + silent.requests == 40

    await eventually_async(settled)
    assert good.requests >= 20, "requests that are not answered count, and drive the others to another pod"
    for call in calls:
        call.cancel()
    await eventually_async(lambda: at_rest(gateway))

    async def told() -> bool:
        return silent.gone == silent.requests

    await eventually_async(told)


async def answered(client: aiohttp.ClientSession, gateway: Gateway) -> int:
    async with post(client, gateway) as response:
        await response.read()
        return int(response.status)


async def test_who_reads_slowly_slows_the_pod_and_fills_no_memory(
    start_gateway: StartGateway, pods: Pods, client: aiohttp.ClientSession
) -> None:
    size, count = 64 * 1024, 2000
    event = chunk(b"data: " + b"x" * size + b"\n\n")

    async def pours(pod: Pod, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM)
        for _ in range(count):
            writer.write(event)
            await writer.drain()
            pod.sent += 1
        writer.write(chunk(DONE) + b"0\r\n\r\n")

    pod = await pods(pours)
    gateway = start_gateway(pods=[pod.url])
    await answered(client, gateway)
    before, pod.sent = gateway.resident(), 0
    async with post(client, gateway, stream=True) as response:
        await response.content.readexactly(10)
        seen: list[int] = []

        async def stands_still() -> bool:
            seen.append(pod.sent)
            return len(seen) > 5 and len(set(seen[-5:])) == 1

        await eventually_async(stands_still)
        assert pod.sent < count / 2, "the pod was not slowed down"
        assert gateway.resident() - before < 32 * 1024 * 1024
        total = 10
        async for part in response.content.iter_any():
            total += len(part)
    assert total == count * (size + 8) + len(DONE)
    assert gateway.resident() - before < 32 * 1024 * 1024


async def test_hundreds_of_clients_that_leave_at_once_leave_nothing(
    start_gateway: StartGateway, pods: Pods, client: aiohttp.ClientSession
) -> None:
    pod = await pods(streams)
    gateway = start_gateway(pods=[pod.url])
    responses = []
    for _ in range(10):
        responses += await asyncio.gather(*(post(client, gateway, stream=True) for _ in range(50)))
    assert (await model(gateway))["in_flight"] == 500
    for response in responses:
        response.close()
    await eventually_async(lambda: at_rest(gateway))

    async def told() -> bool:
        return pod.gone == 500

    await eventually_async(told)
    assert warnings(gateway) == []
    assert await asyncio.to_thread(gateway.metric, "octavo_gateway_broken_streams_total") == 0


async def test_a_gateway_takes_all_the_connections_it_may(start_gateway: StartGateway, pods: Pods) -> None:
    """Two thousand streams are four thousand files; a shell gives a thousand to who does not ask."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        gateway = start_gateway(pods=[(await pods(answers)).url])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert psutil.Process(gateway.process.pid).rlimit(psutil.RLIMIT_NOFILE) == (hard, hard)


async def test_a_gateway_restarted_under_load_drops_nothing(
    start_gateway: StartGateway, pods: Pods, client: aiohttp.ClientSession
) -> None:
    pod, steady = await pods(streams), await pods(answers)
    leaving = start_gateway("--drain-delay", "2", "--drain-timeout", "60", pods=[pod.url])
    staying = start_gateway(pods=[steady.url])
    running = [await post(client, leaving, stream=True).__aenter__() for _ in range(20)]
    for response in running:
        assert await response.content.readuntil(b"\n\n") == EVENT
    pod.behave = answers
    # As behind a Service: calls go to gateways that say they are ready.
    service = [leaving, staying]
    done, lost = [0, 0], []

    async def calls(client_number: int) -> None:
        while not stop.is_set():
            gateway = service[client_number % len(service)]
            async with post(client, gateway) as response:
                await response.read()
                done[gateway is staying] += 1
                if response.status != 200:
                    lost.append(response.status)

    async def readiness() -> None:
        while leaving in service:
            async with client.get(leaving.url + "/readyz") as response:
                if response.status == 503:
                    service.remove(leaving)

    async def closed() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", leaving.port)
        except OSError:
            return True
        writer.close()
        return False

    stop = asyncio.Event()
    async with asyncio.TaskGroup() as load:
        for number in range(8):
            load.create_task(calls(number))
        load.create_task(readiness())
        await eventually_async(lambda: enough(done))
        leaving.process.send_signal(signal.SIGTERM)
        await eventually_async(closed)
        assert leaving.process.poll() is None, "it waits for its streams"
        pod.go_on.set()
        for response in running:
            assert await response.read() == EVENT + DONE
        await eventually_async(lambda: ended(leaving))
        stop.set()
    assert lost == []
    assert leaving.process.returncode == 0
    assert warnings(leaving) == warnings(staying) == []


async def enough(done: list[int]) -> bool:
    return min(done) > 10


async def ended(gateway: Gateway) -> bool:
    return gateway.process.poll() is not None
