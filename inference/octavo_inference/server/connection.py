"""The server side of one client connection: adds the bounds on heads and on silence that uvicorn's parser lacks.

A head is the request line and the headers. It may take 32 KiB, 100 headers and 10 seconds; a larger one is a 431 and a
slow one a 408, before any key is checked. A connection without a byte is closed without a response. The bytes are
counted before they are parsed, so a header without end costs no more than reading 32 KiB.

`HttpServer` calls `sweep` about once a second, so no connection needs a timer of its own.
"""

from __future__ import annotations

import logging
import uuid
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo_inference.server.error_format import OPENAI_FORMAT, ErrorFormat, error_format
from octavo_inference.server.errors import ApiError, head_too_large, head_too_slow, malformed

log = logging.getLogger("octavo.http")

MAX_HEAD = 32 * 1024
MAX_HEADERS = 100
HEAD_SECONDS = 10.0
# A refused client's data is still read for so long and so far: if the connection closed at once, the reset could
# overtake the response.
_LINGER_SECONDS = 2.0
_LINGER_BYTES = 256 * 1024


class ClientConnection(HttpToolsProtocol):
    """One client's connection. A pipelined head may be twice as long, because it can begin in the middle of a read."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True
        self._head_bytes = 0
        # Bytes of chunk sizes, extensions and trailers since the last byte of a body.
        self._framing_bytes = 0
        # True once the bytes being parsed have ended a head or continued a body.
        self._advanced = False
        # When the wait for the current head, or for the rest of an answered request, began.
        self._waiting_since: float | None = None
        self._fault: ApiError | None = None
        # Set after a refusal: nothing is parsed any more.
        self._closing_since: float | None = None
        self._discarded = 0

    def connection_made(self, transport: Any) -> None:
        """Called by asyncio."""
        super().connection_made(transport)
        self._waiting_since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio. Parses at most `MAX_HEAD` bytes at a time, so that one read cannot hold a longer head."""
        self._unset_keepalive_if_required()
        if len(data) <= MAX_HEAD:
            self._feed(data)
            return
        view = memoryview(data)
        for start in range(0, len(data), MAX_HEAD):
            self._feed(view[start : start + MAX_HEAD])

    def sweep(self, now: float, head_seconds: float) -> None:
        """Close the connection if it has kept the server waiting too long. `now` is the loop's time."""
        if self._closing_since is not None:
            if now - self._closing_since >= _LINGER_SECONDS:
                self.transport.close()
            return
        if self._waiting_since is None or now - self._waiting_since < head_seconds or self._is_busy:
            return
        if self._in_head and self._head_bytes:
            self._refuse(head_too_slow(head_seconds))
        else:
            self.transport.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser. Trailers are dropped: they arrive after the checks of the headers."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Called by the parser: a head is complete, and its request begins."""
        self._advanced = True
        self._in_head = False
        self._waiting_since = None
        self._framing_bytes = 0
        if len(self.headers) > MAX_HEADERS:
            self._fault = head_too_large(MAX_HEAD, MAX_HEADERS)
            raise self._fault
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._advanced = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Called by the parser: whatever follows is the next head."""
        self._advanced = True
        self._in_head = True
        self._head_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Called by uvicorn. The rest of an answered request, or of a head that has begun, must arrive in time, too."""
        super().on_response_complete()
        self._waiting_since = self.loop.time() if self._head_bytes or not self._in_head else None

    @property
    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _feed(self, data: bytes | memoryview) -> None:
        if self._closing_since is not None:
            self._discarded += len(data)
            if self._discarded > _LINGER_BYTES:
                self.transport.close()
            return
        self._advanced = False
        if not self._in_head:
            self._parse(data)
            self._framing_bytes = 0 if self._advanced else self._framing_bytes + len(data)
            if self._framing_bytes > MAX_HEAD:
                self._refuse(malformed())
            return
        if self._waiting_since is None:
            self._waiting_since = self.loop.time()
        room = MAX_HEAD - self._head_bytes
        self._head_bytes += min(len(data), room)
        self._parse(data[:room])
        if len(data) > room:
            if self._advanced:
                self._feed(data[room:])
            else:
                self._refuse(head_too_large(MAX_HEAD, MAX_HEADERS))

    def _parse(self, data: bytes | memoryview) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # No other protocol is spoken here. The parser takes what follows for that protocol, so this request is the
            # last one.
            if self.cycle is not None:
                self.cycle.keep_alive = False
        except httptools.HttpParserError:
            self._refuse(self._fault or malformed())

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error object, unless a response has begun, and end the connection."""
        if self._closing_since is not None or self.transport.is_closing():
            return
        self._closing_since = self.loop.time()
        self.pipeline.clear()
        log.info("request refused before it was complete", extra={"status": error.status})
        if self._is_busy:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        format_, request_id = self._error_format(), uuid.uuid4().hex
        body = format_.body(error, request_id)
        head = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}".encode()]
        head += [name + b": " + value for name, value in self.server_state.default_headers]
        head += [name + b": " + request_id.encode() for name in format_.id_headers]
        head += [b"content-type: application/json", b"content-length: %d" % len(body), b"connection: close"]
        self.transport.write(b"\r\n".join(head) + b"\r\n\r\n" + body)
        self.transport.write_eof()
        self.flow.resume_reading()

    def _error_format(self) -> ErrorFormat:
        """The format of errors by what has been read of the head: its path, and its complete headers."""
        if self.headers is None:
            return OPENAI_FORMAT
        path = self.url.partition(b"?")[0].decode("latin-1")
        return error_format(path, {name.decode("latin-1"): "" for name, _ in self.headers})
