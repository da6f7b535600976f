"""A light HTTP load generator: keeps connections alive, times and counts responses, parses nothing.

Open loop: each request has a due time, regardless of responses to others, and its latency counts from then.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from statistics import quantiles
from typing import cast

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Answers:
    """Milliseconds to the first byte of the body and to the end of each successful response."""

    first: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    errors: int = 0
    at_once: int = 0
    most_at_once: int = 0

    def summary(self) -> dict[str, float]:
        """Counts and percentiles."""
        out: dict[str, float] = {"answers": len(self.total), "errors": self.errors, "at_once": self.most_at_once}
        for name, values in (("first", self.first), ("total", self.total)):
            cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else [0.0] * 99
            out |= {f"{name}_p50_ms": round(cuts[49], 3), f"{name}_p99_ms": round(cuts[98], 3)}
        return out


class Connection(asyncio.Protocol):
    """A keep-alive connection, one request at a time. `text` is the response body, without its framing once complete.

    `first` is the time when the body first matched `mark`: any content, if it is None.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.status = 0
        self.first = 0.0
        self.text = b""
        self.closing = False
        self.mark: re.Pattern[bytes] | None = None
        self._left = -1
        self._head = b""
        self._done: asyncio.Future[bool] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; the connection can send requests."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transport is no subclass

    def connection_lost(self, _exc: Exception | None) -> None:
        """Fail the pending request."""
        self.closing = True
        self._finish(well=False)

    async def ask(self, request: bytes, mark: re.Pattern[bytes] | None) -> bool:
        """Send a request and wait for the end of its response; False when the connection broke."""
        if self.transport is None or self.closing:
            return False
        self.status, self.first, self.text, self._left, self._head = 0, 0.0, b"", -1, b""
        self.mark = mark
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._done

    def data_received(self, data: bytes) -> None:
        """Parse the received bytes of the response."""
        if not self.status:
            self._head += data
            head, mark, data = self._head.partition(b"\r\n\r\n")
            if not mark:
                return
            lower = head.lower()
            self.status = int(head[9:12])
            self.closing = b"\r\nconnection: close" in lower
            at = lower.find(b"\r\ncontent-length:")
            self._left = int(lower[at + 17 :].partition(b"\r\n")[0]) if at >= 0 else -1
        self.text += data
        if data and not self.first and (self.mark is None or self.mark.search(self.text)):
            self.first = time.perf_counter()
        chunked_end = self._left < 0 and self.text.endswith(b"0\r\n\r\n")
        if chunked_end:
            self.text = unchunked(self.text)
        if chunked_end or 0 <= self._left <= len(self.text):
            self._finish(well=True)

    def _finish(self, *, well: bool) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(well)


class Client:
    """A pool of keep-alive connections to one address."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Connection] = []

    async def call(
        self, request: bytes, answers: Answers, due: float, *, stream: bool, mark: re.Pattern[bytes] | None = None
    ) -> str:
        """Send one request, due at a time of `perf_counter`; the body of a successful response, else empty."""
        answers.at_once += 1
        answers.most_at_once = max(answers.most_at_once, answers.at_once)
        try:
            connection = self._idle.pop() if self._idle else await self._connect()
            good = await connection.ask(request, mark) and connection.status == 200
        except OSError:
            good = False
        finally:
            answers.at_once -= 1
        if not good or (stream and DONE not in connection.text):
            answers.errors += 1
            return ""
        answers.first.append((connection.first - due) * 1000)
        answers.total.append((time.perf_counter() - due) * 1000)
        text = connection.text.decode(errors="replace")
        if not connection.closing:
            self._idle.append(connection)
        return text

    async def at_rate(self, request: bytes, rate: float, seconds: float, answers: Answers, *, stream: bool) -> None:
        """Send the same request at a fixed rate for some seconds, and wait for all responses."""
        began = time.perf_counter()
        async with asyncio.TaskGroup() as calls:
            for number in range(max(1, int(rate * seconds))):
                due = began + number / rate
                if (left := due - time.perf_counter()) > 0:
                    await asyncio.sleep(left)
                calls.create_task(self.call(request, answers, due, stream=stream))

    async def flat_out(self, request: bytes, connections: int, seconds: float, answers: Answers) -> None:
        """Send requests back to back with this many in flight."""
        end = time.perf_counter() + seconds

        async def one() -> None:
            while (now := time.perf_counter()) < end:
                await self.call(request, answers, now, stream=False)

        async with asyncio.TaskGroup() as calls:
            for _ in range(connections):
                calls.create_task(one())

    def close(self) -> None:
        """Close all connections."""
        for connection in self._idle:
            if connection.transport is not None:
                connection.transport.close()

    async def _connect(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self._port)
        return connection


def unchunked(framed: bytes) -> bytes:
    """The body without its chunked framing."""
    body, at = b"", 0
    while (end := framed.find(b"\r\n", at)) > at:
        size = int(framed[at:end].partition(b";")[0], 16)
        body += framed[end + 2 : end + 2 + size]
        at = end + size + 4
    return body


def request(body: dict[str, object], path: str = "/v1/chat/completions") -> bytes:
    """The bytes of a POST request."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data
