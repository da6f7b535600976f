"""The API port: the endpoints of each format, the version and the probes."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from octavo_inference.server.auth import Keys
from octavo_inference.server.endpoint import HttpEndpoint, http_router
from octavo_inference.server.errors import ApiError, engine_gone, not_ready
from octavo_inference.server.http import RequestGuard, json_response
from octavo_inference.server.openai.endpoints import ENDPOINTS as OPENAI
from octavo_inference.server.service import Service
from octavo_protocol import names

OPEN_PATHS = frozenset({"/livez", "/readyz", "/startupz", "/health"})


def public_app(service: Service, keys: Keys | None, version: str) -> ASGIApp:
    """The app of the API port. With `keys`, every path but the probes needs a key, even one that does not exist."""

    async def get_version(_: Service, __: Request) -> Response:
        return json_response(msgspec.json.encode({"version": version}))

    endpoints = [
        *OPENAI,
        HttpEndpoint("GET", "/version", get_version),
        HttpEndpoint("GET", "/livez", livez),
        HttpEndpoint("GET", "/readyz", readyz),
        HttpEndpoint("GET", "/startupz", startupz),
        HttpEndpoint("GET", "/health", readyz),
    ]
    return RequestGuard(
        http_router(service, endpoints),
        keys=keys,
        open_paths=OPEN_PATHS,
        intake=service.intake,
        tenant_header=service.tenant_header,
    )


async def livez(service: Service, _: Request) -> Response:
    """Liveness: the event loop responds, and the engine has not ended while loading or running."""
    failure = service.router.failure
    if failure is not None:
        raise engine_gone(failure.for_clients)
    return json_response(b'{"status":"alive"}')


async def readyz(service: Service, _: Request) -> Response:
    """Readiness: the model is loaded, has generated a token, and the server accepts new requests."""
    if service.draining:
        raise ApiError(503, "Draining.", code="draining", headers={names.HEADER_DRAINING: "1"})
    if not service.is_ready:
        raise not_ready()
    return json_response(b'{"status":"ready"}')


async def startupz(service: Service, _: Request) -> Response:
    """Startup: the server was ready once."""
    if not service.ready:
        raise not_ready()
    return json_response(b'{"status":"started"}')
