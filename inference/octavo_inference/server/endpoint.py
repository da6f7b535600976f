"""HTTP endpoints: method, path and handler. A group of endpoints is a folder with its own request bodies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from octavo_inference.server.service import Service


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """One endpoint. `path` is a Starlette route path; `respond` may raise `ApiError`.

    `body`, `answer` and `event` are the message types of the request body, of a JSON response with status 200 and of
    one event of a stream; None if there is none.
    """

    method: str
    path: str
    respond: Callable[[Service, Request], Awaitable[Response]]
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    event: object = None


def http_router(service: Service, endpoints: Iterable[HttpEndpoint]) -> Router:
    """The ASGI app of these endpoints. Any other path is a 404 for `RequestGuard`."""
    routes = [_route(service, endpoint) for endpoint in endpoints]
    return Router(routes, redirect_slashes=False, default=_not_found)


def _route(service: Service, endpoint: HttpEndpoint) -> Route:
    async def call(request: Request) -> Response:
        return await endpoint.respond(service, request)

    return Route(endpoint.path, call, methods=[endpoint.method])


async def _not_found(_: Scope, __: Receive, ___: Send) -> None:
    raise HTTPException(404)
