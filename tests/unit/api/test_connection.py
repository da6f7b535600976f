"""Bounds of a connection to either port: size and time of heads, and what happens to a client that breaks them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable

import pytest
from tests.support.waiting import eventually_async

from octavo_inference.server.connection import MAX_HEAD, MAX_HEADERS
from octavo_inference.server.lifecycle import HttpServer

HEAD_SECONDS = 0.4
GET = b"GET /livez HTTP/1.1\r\nHost: h\r\n"
CLOSE = b"Connection: close\r\n\r\n"


class Echo:
    """An ASGI app that reads whole bodies and answers with their length; `seen` are the headers of each request."""

    def __init__(self) -> None:
        self.seen: list[list[tuple[bytes, bytes]]] = []
        self.gone = 0
        self.reads_body = True

    async def __call__(self, scope, receive, send):
        self.seen.append(scope["headers"])
        size, more = 0, self.reads_body
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone += 1
                return
            size, more = size + len(message["body"]), message["more_body"]
        body = str(size).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def listening(app: Echo) -> AsyncIterator[Callable[..., object]]:
    """A server of `app`; the value is a function that connects to it."""
    server_socket = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(app, server_socket, head_seconds=HEAD_SECONDS)
    running = asyncio.create_task(server.run())
    port = server_socket.getsockname()[1]
    await eventually_async(lambda: server.started)
    try:
        yield lambda: asyncio.open_connection("127.0.0.1", port)
    finally:
        server.should_exit = True
        await running


async def exchange(connect, *pieces: bytes) -> bytes:
    """Send pieces, each after the server has had time to read the last; the answer until the server closes."""
    reader, writer = await connect()
    # Reads from the start: a reset by the server would drop what the reader has not taken.
    answer = asyncio.create_task(rest(reader))
    try:
        for piece in pieces:
            writer.write(piece)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            await asyncio.sleep(0)
        return await asyncio.wait_for(answer, 20)
    finally:
        writer.close()


async def rest(reader: asyncio.StreamReader) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(65536):
            found += chunk
    return found


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def error(answer: bytes) -> dict[str, object]:
    found = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert set(found) == {"message", "type", "param", "code"}
    assert b"connection: close" in answer.lower()
    return found


TOO_LARGE = {
    "one header without end": [GET + b"X-A: ", b"a" * 4_000_000],
    "one header": [GET + b"X-A: " + b"a" * MAX_HEAD + b"\r\n\r\n"],
    "one name": [GET + b"a" * MAX_HEAD + b": a\r\n\r\n"],
    "many headers": [GET + b"X-A: a\r\n" * MAX_HEADERS + b"\r\n"],
    "headers without end": [GET, b"X-A: a\r\n" * 300_000],
    "all headers": [GET + b"".join(b"X-%d: %s\r\n" % (i, b"a" * 4000) for i in range(9)) + b"\r\n"],
    "the request line": [b"GET /" + b"a" * MAX_HEAD + b" HTTP/1.1\r\n\r\n"],
}


@pytest.mark.parametrize("name", TOO_LARGE)
async def test_a_head_that_is_too_large_is_431_and_reaches_no_application(name):
    app = Echo()
    async with listening(app) as connect:
        answer = await exchange(connect, *TOO_LARGE[name])
    assert status(answer) == 431
    assert str(MAX_HEAD) in error(answer)["message"]
    assert str(MAX_HEADERS) in error(answer)["message"]
    assert app.seen == []


ANTHROPIC = {
    "too large": (431, [b"POST /v1/messages?beta=true HTTP/1.1\r\nX-A: ", b"a" * MAX_HEAD]),
    "the request line": (431, [b"POST /v1/messages?" + b"a" * MAX_HEAD]),
    "malformed": (400, [b"POST /v1/messages/count_tokens HTTP/1.1\r\nX A\r\n\r\n"]),
    "too slow": (408, [b"POST /v1/messages HTTP/1.1\r\nX-A: a"]),
    "by header": (431, [GET + b"Anthropic-Version: 2023-06-01\r\nX-A: ", b"a" * MAX_HEAD]),
    "two lengths": (400, [b"POST /v1/messages HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"]),
}


@pytest.mark.parametrize("name", ANTHROPIC)
async def test_a_refused_head_of_the_messages_api_gets_an_error_of_that_api(name):
    wanted, pieces = ANTHROPIC[name]
    async with listening(Echo()) as connect:
        answer = await exchange(connect, *pieces)
    assert status(answer) == wanted
    head, _, body = answer.partition(b"\r\n\r\n")
    found = json.loads(body)
    assert (found["type"], set(found["error"])) == ("error", {"type", "message"})
    assert b"request-id: " + found["request_id"].encode() in head


async def test_a_head_of_just_the_size_allowed_passes():
    app = Echo()
    lines = b"Connection: close\r\n" + b"".join(b"X-%d: a\r\n" % index for index in range(MAX_HEADERS - 3))
    head = GET + lines + b"X-P: %s\r\n\r\n"
    head %= b"a" * (MAX_HEAD - len(head % b""))
    async with listening(app) as connect:
        answer = await exchange(connect, head)
    assert len(app.seen[0]) == MAX_HEADERS
    assert status(answer) == 200


async def test_a_large_body_passes_in_any_pieces():
    app = Echo()
    head = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3000000\r\nConnection: close\r\n\r\n"
    async with listening(app) as connect:
        whole = await exchange(connect, head + b"a" * 3_000_000)
        pieces = await exchange(connect, head, b"a" * 100_000, b"a" * 2_900_000)
    assert whole.endswith(b"3000000")
    assert pieces.endswith(b"3000000")


async def test_a_silent_connection_is_closed_without_a_response():
    async with listening(Echo()) as connect:
        started = time.monotonic()
        assert await exchange(connect) == b""
    assert time.monotonic() - started >= HEAD_SECONDS


@pytest.mark.parametrize("half", [b"\r\n", b"GET /liv", GET, GET + b"X-A: a"])
async def test_half_a_head_is_408(half):
    app = Echo()
    async with listening(app) as connect:
        answer = await exchange(connect, half)
    assert status(answer) == 408
    assert error(answer)["code"] == "timeout"
    assert app.seen == []


async def test_a_head_that_drips_is_408():
    async with listening(Echo()) as connect:
        reader, writer = await connect()
        writer.write(GET)
        while not reader.at_eof() and not reader._buffer:  # type: ignore[attr-defined]
            writer.write(b"X-A: a\r\n")
            await asyncio.sleep(HEAD_SECONDS / 10)
        assert status(await rest(reader)) == 408
        writer.close()


async def test_an_idle_connection_may_rest_after_a_request_and_half_a_second_one_may_not():
    async with listening(Echo()) as connect:
        reader, writer = await connect()
        writer.write(GET + b"\r\n")
        assert status(await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(1)) == 200
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), HEAD_SECONDS * 3)
        writer.write(GET)
        assert status(await rest(reader)) == 408
        writer.close()


async def test_the_rest_of_an_answered_request_must_arrive_in_time():
    app = Echo()
    app.reads_body = False
    async with listening(app) as connect:
        answer = await exchange(connect, b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nabc")
    assert status(answer) == 200
    assert answer.count(b"HTTP/1.1") == 1


async def test_pipelined_requests_are_answered_in_order():
    app = Echo()
    post = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
    async with listening(app) as connect:
        answer = await exchange(connect, post % 3 + b"abc" + post % 40_000 + b"a" * 40_000 + GET + CLOSE)
    assert answer.count(b"HTTP/1.1 200") == 3
    assert b"40000" in answer


@pytest.mark.parametrize("tail", [b"X-Octavo-Tenant: spoofed\r\n\r\n", b"X-A: " + b"a" * 2_000_000])
async def test_trailers_are_dropped_and_bounded(tail):
    app = Echo()
    head = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n" + CLOSE
    async with listening(app) as connect:
        answer = await exchange(connect, head + b"3\r\nabc\r\n0\r\n" + tail)
    assert status(answer) == (200 if len(tail) < 100 else 400)
    assert not any(name.startswith(b"x-") for name, _ in app.seen[0])


async def test_a_body_that_becomes_malformed_ends_its_request():
    app = Echo()
    head = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with listening(app) as connect:
        answer = await exchange(connect, head + b"3\r\nabc\r\n", b"zz\r\n")
    assert status(answer) == 400
    assert error(answer)["code"] == "malformed_request"
    assert app.gone == 1


async def test_after_an_offer_of_another_protocol_the_connection_ends_with_the_answer():
    app = Echo()
    upgrade = GET + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
    async with listening(app) as connect:
        answer = await exchange(connect, upgrade)
    assert status(answer) == 200


async def test_a_refused_client_that_never_stops_is_cut():
    async with listening(Echo()) as connect:
        reader, writer = await connect()
        sent = 0
        with contextlib.suppress(ConnectionError):
            for _ in range(2000):
                writer.write(b"X" * 65536 if sent else GET + b"X-A: ")
                sent += 65536
                await writer.drain()
        await rest(reader)
        writer.close()
    assert sent < 2000 * 65536
