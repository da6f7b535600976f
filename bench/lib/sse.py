"""A light client of event streams: counts and times events, parses none."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import cast


@dataclass(slots=True)
class Answer(asyncio.Protocol):
    """One streamed response: `times` has an entry per event; `done` resolves when the stream ends."""

    body: bytes
    times: list[float] = field(default_factory=list)
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    tail: bytes = b""
    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transport is no subclass
        self.transport.write(self.body)

    def data_received(self, data: bytes) -> None:
        """Count the received events."""
        text = self.tail + data
        self.times += [time.perf_counter()] * (text.count(b'"text":') - self.tail.count(b'"text":'))
        self.tail = text[-512:]
        if self.tail.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            self.stop()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Resolve `done` at the end of the response or of the connection."""
        self.stop()

    def stop(self) -> None:
        """Close the connection."""
        if self.transport is not None:
            self.transport.close()
        if not self.done.done():
            self.done.set_result(None)

    @property
    def completion_tokens(self) -> int:
        """Completion tokens of the usage at the stream's end."""
        found = re.search(rb'"completion_tokens":(\d+)', self.tail)
        return int(found[1]) if found else 0


def message(prompt: list[int], answer: int) -> bytes:
    """A complete HTTP request for a greedy stream that ends by length."""
    fields = {"model": "bench", "prompt": prompt, "max_tokens": answer, "temperature": 0, "ignore_eos": True}
    body = json.dumps(fields | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\nConnection: keep-alive\r\n\r\n".encode() + body


async def connect(port: int, body: bytes) -> Answer:
    _, answer = await asyncio.get_running_loop().create_connection(lambda: Answer(body), "127.0.0.1", port)
    return answer
