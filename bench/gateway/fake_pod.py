"""A pod that costs almost nothing: it responds at once, or streams events with a pause between them.

`python -m bench.gateway.fake_pod PORT EVENTS GAP`. It splits bytes by hand: the cost of a web framework would hide the
cost of a proxy.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import cast

import uvloop

EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "word "}}]}\n\n'
DONE = b"data: [DONE]\n\n"
PLAIN = b'{"choices": [{"index": 0, "message": {"content": "word"}, "finish_reason": "stop"}]}'
# Paths that proxies request in addition to completions.
LOAD = json.dumps(
    {
        "sequence": 1, "start_time": 1.0, "model": "bench", "block_size": 32, "blocks_total": 100000,
        "blocks_pinned": 0, "blocks_cached": 0, "running": 0, "waiting": 0, "waiting_tokens": 0,
        "uncached_prompt_tokens": 0, "oldest_wait": 0.0, "preemptions": 0, "requests": 0, "prompt_tokens": 0,
        "generation_tokens": 0,
        "prefix_hit_tokens": 0, "max_running": 4096, "max_batched_tokens": 8192, "max_waiting": 4096, "ready": True,
        "draining": False,
    }
).encode()  # fmt: skip
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_STREAM = re.compile(rb'"stream": *true')


def whole(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


ANSWER, REPORT = whole(PLAIN), whole(LOAD)
# vllm-router sends each chat to vLLM's render endpoint first; octavo-server has no such path either.
RENDER, NOT_FOUND = b"POST /v1/chat/completions/render ", whole(b"{}").replace(b"200 OK", b"404 Not Found", 1)
BEGIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(EVENT)
NEXT, END = chunk(EVENT), chunk(DONE) + b"0\r\n\r\n"


class Pod(asyncio.Protocol):
    """One client connection."""

    def __init__(self, events: int, gap: float) -> None:
        self._events = events
        self._gap = gap
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is no subclass

    def data_received(self, data: bytes) -> None:
        """Respond to every complete request."""
        self._data += data
        while (end := self._data.find(b"\r\n\r\n") + 4) > 3:
            found = _LENGTH.search(self._data, 0, end)
            total = end + (int(found[1]) if found else 0)
            if len(self._data) < total:
                return
            request, self._data = self._data[:total], self._data[total:]
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        if self._transport is None:
            return
        if not request.startswith(b"POST"):
            self._transport.write(REPORT)
        elif request.startswith(RENDER):
            self._transport.write(NOT_FOUND)
        elif _STREAM.search(request):
            self._transport.write(BEGIN)
            asyncio.get_running_loop().call_later(self._gap, self._event, self._events - 1)
        else:
            self._transport.write(ANSWER)

    def _event(self, left: int) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(NEXT if left else END)
        if left:
            asyncio.get_running_loop().call_later(self._gap, self._event, left - 1)


async def main(port: int, events: int, gap: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Pod(events, gap), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
