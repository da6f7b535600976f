"""The time that a head may take is over with the head, on both ports."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from unittest.mock import Mock

import pytest
from aiohttp import web

from octavo_gateway.http.connection import HttpConnection, listen

# A busy machine may stand still for longer than a tenth of a second.
HEAD_SECONDS = 0.5


@asynccontextmanager
async def connection(world, port):
    """A connection to one of the ports: reader, writer, and a list that grows with each refused head."""
    await world.start()
    app = world.api.app() if port == "public" else world.admin.app()
    refused = []
    runner = web.AppRunner(app)
    await runner.setup()
    server = await listen(runner, "127.0.0.1", 0, lambda: refused.append(1), head_seconds=HEAD_SECONDS)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    try:
        yield reader, writer, refused
    finally:
        writer.close()
        server.close()
        await runner.cleanup()


@pytest.mark.parametrize("port", ["public", "admin"])
async def test_a_connection_may_rest_between_two_requests(world, port):
    path = b"/version" if port == "public" else b"/metrics"
    async with connection(world, port) as (reader, writer, refused):
        for _ in range(2):
            writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: h\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            (length,) = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 6 * HEAD_SECONDS)
        assert not refused


@pytest.mark.parametrize("port", ["public", "admin"])
async def test_a_silent_connection_is_closed_without_an_answer(world, port):
    async with connection(world, port) as (reader, _, refused):
        assert await asyncio.wait_for(reader.read(), 10) == b""
        assert not refused, "nothing was sent, so nothing was malformed"


async def test_a_head_that_comes_before_the_connection_is_served_counts(world):
    """Its first bytes may be there before the task that answers has run: the error has the form of its path."""
    await world.start()
    runner = web.AppRunner(world.api.app())
    await runner.setup()
    assert runner.server is not None
    connection = HttpConnection(runner.server, asyncio.get_running_loop(), lambda: None, HEAD_SECONDS)
    transport = Mock(spec=asyncio.Transport)
    connection.connection_made(transport)
    try:
        connection.data_received(b"POST /v1/messages HTTP/1.1\r\nX-A: a")
        await asyncio.sleep(2 * HEAD_SECONDS)
        (answer,) = [call.args[0] for call in transport.write.call_args_list]
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"type":"error"' in answer
    finally:
        connection.connection_lost(None)
        await runner.cleanup()
