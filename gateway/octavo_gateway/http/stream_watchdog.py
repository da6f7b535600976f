"""The end of a pod's connection is the end of its answer.

aiohttp's client closes the connection when it cannot parse what comes, in the middle of a body too, but tells nobody
who reads that body: he would wait for ever.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp


@contextmanager
def lifeline(pod: aiohttp.ClientResponse) -> Iterator[None]:
    """While a body is read: raise `ClientPayloadError` to its reader when the connection ends before it does."""
    protocol = pod.connection.protocol if pod.connection is not None else None
    closed = protocol.closed if protocol is not None else None
    if closed is None:  # The body is complete already, or its end is known.
        yield
        return

    def end(_: Future[None]) -> None:
        if not pod.content.is_eof() and pod.content.exception() is None:
            pod.content.set_exception(aiohttp.ClientPayloadError("the connection ended within the body"))

    closed.add_done_callback(end)
    try:
        yield
    finally:
        closed.remove_done_callback(end)
