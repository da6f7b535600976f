"""Ends the reading of an answer when its connection ends.

aiohttp's client closes the connection when it cannot parse the data, in the middle of a body too. But the reader of
that body gets no exception and would wait without end.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp


@contextmanager
def fail_on_close(response: aiohttp.ClientResponse) -> Iterator[None]:
    """Raise `ClientPayloadError` to the reader of a body if the connection ends before the body does."""
    protocol = response.connection.protocol if response.connection is not None else None
    closed = protocol.closed if protocol is not None else None
    if closed is None:  # The body is already complete, or its end is known.
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
