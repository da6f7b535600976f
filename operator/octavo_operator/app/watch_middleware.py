"""aiohttp middleware: rewrites watch responses that would crash kopf into 410 Gone, so that it relists.

kopf exits, and with it the process, when a watch reports an error other than 410, ends within a line, or has an
unexpected status. API servers and proxies in front of them produce all three. Relisting is the right reaction to each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import aiohttp

from octavo_operator.app.watch_health import WatchHealth

_GONE = b'{"type":"ERROR","object":{"kind":"Status","code":410}}\n'
_EVENT, _ERROR = b'{"type":"', b'{"type":"ERROR"'
# An event only enqueues a key, so metadata suffices: a fraction of the size of a pod or a Deployment. Watches only:
# kopf cannot parse an empty list of this kind.
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_ANSWERS_OF_KOPF = (401, 403, 429)
_NOT_FOUND = 404


class _Lines:
    """The content of a watch, cut into complete events; all other attributes are those of the wrapped content."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Complete events; an incomplete last one is dropped: the next watch resumes after the last complete one."""
        rest = b""
        async for piece in self._content.iter_chunked(size):
            *lines, rest = (rest + piece).split(b"\n")
            for line in filter(None, lines):
                head = line[:64].replace(b" ", b"")
                yield line + b"\n" if head.startswith(_EVENT) and not head.startswith(_ERROR) else _GONE


class _Gone(_Lines):
    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        yield _GONE


def watch_middleware(plurals: Collection[str], health: WatchHealth) -> aiohttp.ClientMiddlewareType:
    """A middleware for the lists and watches of `plurals`; other requests pass unchanged."""

    async def handle(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if request.url.name not in plurals:
            return await send(request)
        path, watch = request.url.path, "watch" in request.url.query
        # Only the first page of a list counts as a request.
        first = "continue" not in request.url.query
        if first:
            await asyncio.sleep(health.pause(path, watch=watch))
        if watch:
            request.headers["Accept"] = _METADATA
        answer = await send(request)
        refused = 400 <= answer.status < 500 and answer.status not in _ANSWERS_OF_KOPF
        if answer.status == 200 and watch:
            answer.content = _Lines(answer.content)  # type: ignore[assignment]
        elif answer.status == 200 and first:
            health.read(path)
        elif refused and watch:
            answer.status, answer.content = 200, _Gone(answer.content)  # type: ignore[assignment]
        elif refused:
            # A deleted CRD may be created again, and an expired page needs a new list: kopf relists only after
            # a ClientPayloadError.
            if answer.status == _NOT_FOUND:
                health.undefined(path)
            answer.release()
            raise aiohttp.ClientPayloadError(f"{request.method} {request.url}: {answer.status}")
        return answer

    return handle
