"""The server side of one client connection: adds the bounds that aiohttp's server leaves to its user.

aiohttp's compiled parser (llhttp, strict for requests) parses the requests. It refuses malformed ones by itself, and
then every further request of the connection:

- two lengths, a length together with chunks, codings other than `chunked`
- folded lines, line feeds without carriage return, NUL, a space before the colon, a second `Host`

This module refuses the cases that the parser accepts or leaves open, with error objects:

- HTTP/0.9 and "HTTP/2.0" in a request line
- a head that takes too long or is too large as a whole, and a connection without one
- chunks so small that their framing is the load
- a body that becomes malformed after its request has begun
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from random import getrandbits

from aiohttp import HttpVersion10, HttpVersion11, StreamReader, http_exceptions, web

from octavo_gateway.api.errors import ApiError, ErrorForm, error_form
from octavo_gateway.http.client_response import error_response
from octavo_protocol.routes import surface_of

# Longer than the minute after which common load balancers close an idle connection: the balancer must close it first.
IDLE_SECONDS = 75.0
HEAD_SECONDS = 10.0
# Seconds for which a refused client's data is still read: if closed at once, the client would not get the refusal.
LINGER_SECONDS = 2.0
MAX_HEADERS = 100
MAX_HEAD = 32 * 1024
# Bytes of a head that are kept: method and path of every route with errors of its own.
MAX_START = 64
_PATH = re.compile(rb"[A-Z]{1,16} (/[A-Za-z0-9_/]*)(?=[ ?])")
# Bytes of the request line, and of one header.
MAX_LINE = 8190
# Framing of a chunked body may take so many bytes plus this share of the received bytes: so chunks of 16 bytes pass.
FRAMING_BYTES = 4096
FRAMING_SHARE = 0.5


class HttpConnection(web.RequestHandler):
    """One client's connection. `malformed` is called for every request that cannot be parsed."""

    __slots__ = (
        "_begun",
        "_body",
        "_busy",
        "_head",
        "_head_seconds",
        "_malformed",
        "_oversized",
        "_silent",
        "_start",
        "_timer",
        "_wire",
    )

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
        self._begun = 0
        self._silent = True
        self._wire = 0
        # Bytes of the head that is not complete yet, and the first ones of the newest head.
        self._head = 0
        self._start = b""
        self._oversized = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, request: web.BaseRequest) -> None:
        """A head is complete and its request begins. Raises `ApiError` if the head is not acceptable."""
        self._stop_timer()
        self._busy = True
        self._begun += 1
        self._body = request.content
        self._wire = 0
        if request.version not in {HttpVersion10, HttpVersion11}:
            raise ApiError(400, "only HTTP/1.1 and HTTP/1.0 are spoken here", close=True)
        if sum(len(name) + len(value) + 4 for name, value in request.raw_headers) > MAX_HEAD:
            raise _too_long()

    def end(self) -> None:
        """The request has been answered."""
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected. Its first head has to be complete in time."""
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Parse bytes. Those outside of a body begin a head, which has to be complete in time."""
        self._silent = False
        body = self._body
        if body is None or body.is_eof():
            # aiohttp calls this without data when it continues with data that it had buffered.
            if data and self._timer is None:
                self._start_timer()
            self._parse_head(data)
            return
        self._wire += len(data)
        super().data_received(data)
        if self._messages and not body.is_eof():
            # A new message before the end of this one is the parser's refusal, which aiohttp does not pass to the body.
            body.set_exception(web.RequestPayloadError())
        elif self._wire - body.total_bytes > FRAMING_BYTES + FRAMING_SHARE * self._wire:
            body.set_exception(ApiError(400, "the body comes in too small chunks; send larger ones", close=True))

    def _parse_head(self, data: bytes) -> None:
        """Parse bytes outside of a body, and refuse a head that is too long before it is complete.

        A queued request, or one that has not begun, may have a body: its bytes are not counted.
        """
        counts = self._begun == self._request_count
        if counts:
            self._start = (self._start if self._head else b"") + data[: MAX_START - min(self._head, MAX_START)]
        before = self._request_count
        super().data_received(data)
        if not counts or self._request_count != before:
            self._head = 0
            return
        self._head += len(data)
        if self._head > MAX_HEAD and not self._oversized:
            self._oversized = True
            super().data_received(b"\0")  # the parser refuses it anywhere in a head

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is closed."""
        self._stop_timer()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 (aiohttp's signature)
    ) -> web.StreamResponse:
        """Answer a refusal of the parser, or of aiohttp itself: an error object and the end of the connection."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has already begun")
        self._malformed()
        error = _too_long() if self._oversized else refusal(status, exc)
        return error_response(error, f"{getrandbits(128):032x}", self._error_form())

    def _error_form(self) -> ErrorForm:
        """The form of errors by the path of the newest head, as far as it is known."""
        found = _PATH.match(self._start)
        return error_form(surface_of(found[1].decode("ascii") if found else "", anthropic_version=False))

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
            # A pipelined head: its request begins after the current one.
            self._start_timer()
        elif self._silent:
            # A browser or load balancer that connected ahead, not a request: there is nothing to answer.
            self.force_close()
        elif self.transport is not None:
            self._malformed()
            error = ApiError(408, f"the request's head was not complete within {self._head_seconds:g} s")
            form, request_id = self._error_form(), f"{getrandbits(128):032x}"
            body = form.body(error, request_id)
            head = "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in form.headers(request_id).items())
            self.transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            self.force_close()


def refusal(status: int, exc: BaseException | None) -> ApiError:
    """The error for a request that could not be parsed."""
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
    """Accept connections for a runner that is set up; the caller closes the server."""
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
