"""The FastAPI application of a port, made from its endpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import request_response
from starlette.types import ASGIApp

from octavo_inference.server.auth import Keys
from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.http import RequestGuard
from octavo_inference.server.openapi.document import Document
from octavo_inference.server.openapi.pages import documentation
from octavo_inference.server.service import Service


class Application(FastAPI):
    """FastAPI with routes of msgspec types and nothing between `RequestGuard` and the router.

    FastAPI's middleware turns exceptions into responses and closes the files of forms. `RequestGuard` does the first
    for every request, and there are no forms.
    """

    def __init__(self, document: Document) -> None:
        super().__init__(
            title=document.title,
            version=document.version,
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            telemetry={"tracing": False, "metrics": False, "logs": False},
        )
        self._document = document

    def build_middleware_stack(self) -> ASGIApp:
        """The router alone."""
        return self.router

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        decoded: dict[str, Any] = msgspec.json.decode(self._document.encoded())
        return decoded


class MessageRoute(APIRoute):
    """A route whose handler reads the request and returns the response: no dependencies, and no pydantic."""

    def __init__(self, path: str, endpoint: Callable[[Request], Awaitable[Response]], **described: Any) -> None:
        super().__init__(path, endpoint, response_model=None, **described)
        self.app = request_response(endpoint)


def http_application(
    service: Service, endpoints: Sequence[HttpEndpoint], *, title: str, version: str, keys: Keys | None
) -> ASGIApp:
    """The ASGI app of these endpoints and of their documentation.

    With `keys`, every path needs a key, even one that does not exist. Exceptions are the endpoints that are open.
    """
    document = Document(title, version, tuple(endpoints), service.names[0], keyed=keys is not None)
    endpoints = [*endpoints, *documentation(document)]
    app = Application(document)
    app.router.routes.extend(_route(service, endpoint) for endpoint in endpoints)
    return RequestGuard(
        app,
        keys=keys,
        open_paths=open_paths(endpoints),
        intake=service.intake,
        tenant_header=service.tenant_header,
    )


def open_paths(endpoints: Iterable[HttpEndpoint]) -> frozenset[str]:
    """The paths that need no key."""
    return frozenset(endpoint.path for endpoint in endpoints if endpoint.is_open)


def _route(service: Service, endpoint: HttpEndpoint) -> MessageRoute:
    async def call(request: Request) -> Response:
        return await endpoint.respond(service, request)

    return MessageRoute(
        endpoint.path,
        call,
        name=endpoint.respond.__name__,
        methods=["GET", "HEAD"] if endpoint.method == "GET" else [endpoint.method],
        tags=[endpoint.surface],
        summary=(endpoint.respond.__doc__ or "").partition("\n")[0],
        status_code=endpoint.status,
        include_in_schema=endpoint.answer is not None,
    )
