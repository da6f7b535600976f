"""The gateway's side of one client connection: the bounds that aiohttp's server leaves to its user.

Requests are cut out of the bytes by aiohttp's compiled parser (llhttp, strict for requests). It refuses by itself, and
for good on that connection: two lengths, a length beside chunks, other codings than `chunked`, folded lines, line feeds
without carriage return, NUL, a space before the colon, a second `Host`.

What it lets through or leaves open is seen to here: HTTP/0.9 and "HTTP/2.0" in a request line, the time that a head may
take, the size of a whole head, chunks so small that their framing is the load, and a body that turns out malformed
after its request has begun. Refusals are error objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import getrandbits

from aiohttp import HttpVersion10, HttpVersion11, StreamReader, http_exceptions, web

from octavo_gateway.http.client_response import error_response
from octavo_gateway.openai import ApiError

# Longer than the minute after which common load balancers drop an idle connection: they must be the ones who do.
IDLE_SECONDS = 75.0
HEAD_SECONDS = 10.0
# After a refusal what the client still sends is read for so long: closed at once, it would not hear the refusal.
LINGER_SECONDS = 2.0
MAX_HEADERS = 100
MAX_HEAD = 32 * 1024
# Of the request line, and of one header.
MAX_LINE = 8190
# Framing of a chunked body may be so many bytes, and this share of what came: chunks of sixteen bytes and more pass.
FRAMING_BYTES = 4096
FRAMING_SHARE = 0.5


class HttpConnection(web.RequestHandler):
    """One client's connection. `malformed` is called for every request that could not be read."""

    __slots__ = ("_body", "_busy", "_head_seconds", "_malformed", "_timer", "_wire")

    def __init__(
        self,
        server: web.Server,
        loop: asyncio.AbstractEventLoop,
        malformed: Callable[[], None],
        head_seconds: float = HEAD_SECONDS,
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # as aiohttp's own runner switches it off
            keepalive_timeout=IDLE_SECONDS,
            lingering_time=LINGER_SECONDS,
            max_line_size=MAX_LINE,
            max_field_size=MAX_LINE,
            max_headers=MAX_HEADERS,
        )
        self._malformed = malformed
        self._head_seconds = head_seconds
        self._body: StreamReader | None = None
        self._busy = False
        self._wire = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, request: web.BaseRequest) -> None:
        """A head is complete, its request is answered from here on. Raises `ApiError` where it must not be."""
        self._stop_timer()
        self._busy = True
        self._body = request.content
        self._wire = 0
        if request.version not in {HttpVersion10, HttpVersion11}:
            raise ApiError(400, "only HTTP/1.1 and HTTP/1.0 are spoken here", close=True)
        if sum(len(name) + len(value) + 4 for name, value in request.raw_headers) > MAX_HEAD:
            raise _too_long()

    def end(self) -> None:
        """The request was answered."""
        self._busy = False

    def data_received(self, data: bytes) -> None:
        """Read on. Bytes that belong to no body are the beginning of a head, which has to be complete in time."""
        body = self._body
        if body is None or body.is_eof():
            # aiohttp calls this without data when it goes on with what it had put aside.
            if data and self._timer is None:
                self._start_timer()
            super().data_received(data)
            return
        self._wire += len(data)
        super().data_received(data)
        if self._messages and not body.is_eof():
            # Another message before the end of this one is the parser's refusal, of which the body does not hear.
            body.set_exception(web.RequestPayloadError())
        elif self._wire - body.total_bytes > FRAMING_BYTES + FRAMING_SHARE * self._wire:
            body.set_exception(ApiError(400, "the body comes in too small chunks; send larger ones", close=True))

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone."""
        self._stop_timer()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 (aiohttp's signature)
    ) -> web.StreamResponse:
        """What the parser, or aiohttp itself, refuses: an error object, and the connection ends."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has already begun")
        self._malformed()
        return error_response(refusal(status, exc), f"{getrandbits(128):032x}")

    def _start_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._head_seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self._busy:
            # A head sent ahead, of a request whose turn comes later.
            self._start_timer()
        elif self.transport is not None:
            self._malformed()
            error = ApiError(408, f"the request's head was not complete within {self._head_seconds:g} s")
            body = error.body()
            head = "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n"
            self.transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            self.force_close()


def refusal(status: int, exc: BaseException | None) -> ApiError:
    """What a client is told of a request that could not be read."""
    if isinstance(exc, http_exceptions.LineTooLong) or "Too many headers" in str(exc):
        return _too_long()
    if isinstance(exc, http_exceptions.HttpProcessingError):
        return ApiError(400, "the request is not well-formed HTTP/1.1", close=True)
    return ApiError(status, "the request could not be answered", close=True)


async def listen(
    runner: web.AppRunner,
    host: str,
    port: int,
    malformed: Callable[[], None],
    *,
    head_seconds: float = HEAD_SECONDS,
    reuse_port: bool = False,
) -> asyncio.Server:
    """Accept connections for a runner that was set up; the caller closes the server."""
    loop = asyncio.get_running_loop()
    server = runner.server
    if server is None:
        raise RuntimeError("the runner was not set up")
    return await loop.create_server(
        lambda: HttpConnection(server, loop, malformed, head_seconds),
        host,
        port,
        backlog=1024,
        reuse_address=True,
        reuse_port=reuse_port or None,
    )


def _too_long() -> ApiError:
    return ApiError(
        431,
        f"the head is too long: at most {MAX_HEADERS} headers, {MAX_LINE} bytes each, {MAX_HEAD} in all",
        close=True,
    )
