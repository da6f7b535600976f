"""What kopf's watches may hear: of an answer that they would die of, only that they have to read everything anew.

kopf ends, and takes the process along, when a watch reports another error than 410, ends within a line, or gets a
status that it does not expect: things that API servers, and proxies before them, do. Each is one more reason to list
again, which is what 410 says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import aiohttp

from octavo_operator.app.watch_health import WatchHealth

_GONE = b'{"type":"ERROR","object":{"kind":"Status","code":410}}\n'
_EVENT, _ERROR = b'{"type":"', b'{"type":"ERROR"'
# An event only wakes: all that has to come over the wire is whom it is about, a fraction of a pod or a Deployment. Not
# of lists: kopf does not understand an empty one of this kind.
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_ANSWERS_OF_KOPF = (401, 403, 429)
_NOT_FOUND = 404


class _Lines:
    """The content of a watch, whole events only. Everything but reading it is left to the content itself."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Events. Half a one at the end is dropped: the next watch goes on after the last whole one."""
        rest = b""
        async for piece in self._content.iter_chunked(size):
            *lines, rest = (rest + piece).split(b"\n")
            for line in filter(None, lines):
                head = line[:64].replace(b" ", b"")
                yield line + b"\n" if head.startswith(_EVENT) and not head.startswith(_ERROR) else _GONE


class _Gone(_Lines):
    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        yield _GONE


def tamed(plurals: Collection[str], pulse: WatchHealth) -> aiohttp.ClientMiddlewareType:
    """A middleware for the lists and watches of `plurals`; other requests pass as they are."""

    async def ask(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if request.url.name not in plurals:
            return await send(request)
        path, watch = request.url.path, "watch" in request.url.query
        # The pages of one list are one question.
        first = "continue" not in request.url.query
        if first:
            await asyncio.sleep(pulse.pause(path, watch=watch))
        if watch:
            request.headers["Accept"] = _METADATA
        answer = await send(request)
        refused = 400 <= answer.status < 500 and answer.status not in _ANSWERS_OF_KOPF
        if answer.status == 200 and watch:
            answer.content = _Lines(answer.content)  # type: ignore[assignment]
        elif answer.status == 200 and first:
            pulse.read(path)
        elif refused and watch:
            answer.status, answer.content = 200, _Gone(answer.content)  # type: ignore[assignment]
        elif refused:
            # A definition that is deleted may come back, and a page that has expired is there with a new list: of
            # all errors kopf begins with a list again at this one alone.
            if answer.status == _NOT_FOUND:
                pulse.undefined(path)
            answer.release()
            raise aiohttp.ClientPayloadError(f"{request.method} {request.url}: {answer.status}")
        return answer

    return ask
