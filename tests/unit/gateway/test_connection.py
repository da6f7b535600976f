"""The time that a head may take is over with the head, on both ports."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from octavo_gateway.http.connection import listen

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
