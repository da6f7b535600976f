"""The end of a replica's connection is the end of its answer.

aiohttp's client closes the connection when it cannot parse what comes, in the middle of a body too, but the reader of
that body gets no exception: it would wait without end.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp


@contextmanager
def fail_on_close(response: aiohttp.ClientResponse) -> Iterator[None]:
    """While a body is read: raise `ClientPayloadError` to its reader when the connection ends before it does."""
    protocol = response.connection.protocol if response.connection is not None else None
    closed = protocol.closed if protocol is not None else None
    if closed is None:  # The body is complete already, or its end is known.
        yield
        return

    def end(_: Future[None]) -> None:
        if not response.content.is_eof() and response.content.exception() is None:
            response.content.set_exception(aiohttp.ClientPayloadError("the connection ended within the body"))

    closed.add_done_callback(end)
    try:
        yield
    finally:
        closed.remove_done_callback(end)
