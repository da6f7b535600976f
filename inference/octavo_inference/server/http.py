"""The HTTP layer around the endpoints: request ids, keys, error objects, event streams, disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo_inference.server.auth import Keys, presented_key
from octavo_inference.server.error_format import error_format
from octavo_inference.server.errors import ApiError, internal
from octavo_inference.server.intake import BodyReservation, Intake
from octavo_protocol.names import HEADER_TENANT

log = logging.getLogger("octavo.http")

KEEP_ALIVE_SECONDS = 15.0
CLIENT_GONE = 499
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

# Keys of `request.scope` that the endpoints read.
REQUEST_ID = "octavo.request_id"
TENANT = "octavo.tenant"
ERRORS = "octavo.errors"
"""The `ErrorFormat` of the request."""
SEND = "octavo.send"
"""The server's own `send`, without middleware."""
NOTES = "octavo.notes"
"""A dict of numbers for the access log: tokens, never text."""
RESERVATION = "octavo.reservation"
"""The `BodyReservation` of the request's body."""


class RequestGuard:
    """Outermost ASGI layer of a port. Guarantees a request id, an API key check and a response for each request.

    `open_paths` need no key. Paths are compared literally, so no variant of such a path is open. `intake` bounds the
    bodies of all requests; its clients are tenants, or addresses if there are no keys. `tenant_header`: gateways name
    the tenants.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keys | None,
        open_paths: frozenset[str] = frozenset(),
        intake: Intake | None = None,
        tenant_header: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths
        self._intake = intake or Intake()
        self._tenant_header = tenant_header
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        started = self._clock()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        errors = error_format(scope["path"], headers)
        notes: dict[str, int] = {}
        scope.update({REQUEST_ID: request_id, TENANT: "", ERRORS: errors, NOTES: notes, SEND: send, "app": self})
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                ids = [(name, request_id.encode()) for name in errors.id_headers]
                message["headers"] = [*message["headers"], *ids]
            await send(message)

        try:
            error = await self._answer(scope, receive, send_with_id, headers)
            if error is not None and not status:
                await respond_error(error, scope, receive, send_with_id)
        except Exception:
            log.exception("request failed", extra={"request_id": request_id})
            if not status:
                await respond_error(internal(request_id), scope, receive, send_with_id)
        finally:
            if RESERVATION in scope:
                scope[RESERVATION].release()
            if scope["path"] not in self._open_paths:
                _log_access(scope, status, self._clock() - started, request_id, notes)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, headers: dict[str, str]) -> ApiError | None:
        try:
            self._authorize(scope, headers)
            scope[RESERVATION] = BodyReservation(self._intake, self._client(scope, headers))
            await self._app(scope, receive, send)
        except ApiError as error:
            return error
        except HTTPException as error:
            return _from_starlette(error, scope)
        return None

    def _client(self, scope: MutableMapping[str, Any], headers: dict[str, str]) -> str:
        """Who shares the server's memory and threads for text with others: a tenant, or an address."""
        tenant: str = scope[TENANT]
        if self._tenant_header:
            tenant += "/" + headers.get(HEADER_TENANT.lower(), "")[:64]
        return tenant or (scope.get("client") or [""])[0]

    def _authorize(self, scope: MutableMapping[str, Any], headers: dict[str, str]) -> None:
        if self._keys is None or scope["path"] in self._open_paths:
            return
        tenant = self._keys.tenant(presented_key(headers))
        if tenant is None:
            raise ApiError(
                401,
                "Missing or wrong API key; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        scope[TENANT] = tenant


def json_response(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response with an encoded JSON body."""
    return Response(body, status, headers, media_type="application/json")


async def respond_error(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an error object."""
    body = scope[ERRORS].body(error, scope[REQUEST_ID])
    await json_response(body, error.status, error.headers)(scope, receive, send)


Result = TypeVar("Result")


async def json_unless_gone(receive: Receive, work: Coroutine[Any, Any, bytes], headers: dict[str, str]) -> Response:
    """The JSON result of `work` as a response. If the client disconnects first, `work` is cancelled."""
    body = await until_disconnect(receive, work)
    return Response(status_code=CLIENT_GONE) if body is None else json_response(body, headers=headers)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Run `work`, but cancel it and return None if the client disconnects."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for pending in (watcher, task):
            pending.cancel()
        await asyncio.gather(watcher, task, return_exceptions=True)
        # The error of `work` refers to this frame: without this, they would wait for the garbage collector.
        del task, watcher, pending


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events: `data: {json}` each, comments while idle, an error event on failure.

    `events` yields one or more encoded events at a time (`server.sse`). None produces a comment, which keeps proxies
    from closing an idle connection. Headers are sent with the first event, so an error before it is still an HTTP
    error. `end` follows the last event of an answer that is complete.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes | None], headers: dict[str, str], *, end: bytes = b"data: [DONE]\n\n"
    ) -> None:
        self._events = events
        self._end = end
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. If the client disconnects, `events` is closed at once."""
        await until_disconnect(receive, self._send(scope, send))

    async def _send(self, scope: Scope, send: Send) -> None:
        started = False
        # Bypass the layers that only handle the start of a response: this is called for every token.
        write: Send = scope[SEND]
        try:
            async with contextlib.aclosing(self._events) as events:
                async for data in events:
                    if not started:
                        started = True
                        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    await _send_chunk(write, b": keep-alive\n\n" if data is None else data)
            if self._end:
                await _send_chunk(write, self._end)
        except ApiError as error:
            if not started:
                raise
            await _send_chunk(write, scope[ERRORS].event(error, scope[REQUEST_ID]))
        except Exception:
            if not started:
                raise
            request_id = scope[REQUEST_ID]
            log.exception("stream failed", extra={"request_id": request_id})
            await _send_chunk(write, scope[ERRORS].event(internal(request_id), request_id))
        await write({"type": "http.response.body", "body": b"", "more_body": False})


async def without_silence(events: AsyncGenerator[bytes | None]) -> AsyncGenerator[bytes | None]:
    """The events without empty ones, in whose place a comment comes once nothing was sent for a while."""
    clock = asyncio.get_running_loop().time
    last = clock()
    async with contextlib.aclosing(events):
        async for data in events:
            if data or data is None or clock() - last >= KEEP_ALIVE_SECONDS:
                last = clock()
                yield data or None


async def _send_chunk(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _from_starlette(error: HTTPException, scope: Scope) -> ApiError:
    method, path = scope["method"], scope["path"][:256]
    if error.status_code == 404:
        return ApiError(404, f"There is no {path!r} here.", code="unknown_url")
    if error.status_code == 405:
        headers = {"Allow": ", ".join(sorted(_methods(scope)))}
        return ApiError(405, f"{path} takes no {method}.", code="method_not_allowed", headers=headers)
    return ApiError(error.status_code, str(error.detail))


def _methods(scope: Scope) -> set[str]:
    """The methods of all routes of the path that matches first: Starlette's error has those of one route alone."""
    routes = [route for route in scope["router"].routes if route.matches(scope)[0] is Match.PARTIAL]
    return {method for route in routes if route.path == routes[0].path for method in route.methods}


def _log_access(scope: Scope, status: int, seconds: float, request_id: str, notes: dict[str, int]) -> None:
    if log.isEnabledFor(logging.INFO):
        fields = {"status": status, "ms": round(seconds * 1000, 1), "request_id": request_id, **notes}
        # The path is untrusted input. JSON escaping keeps it from forging a line in any log format.
        path = json.dumps(scope["path"][:256])
        log.info("%s %s", scope["method"], path, extra=fields)
