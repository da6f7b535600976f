"""Probes of the kubelet, and the version."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.errors import ApiError, engine_gone, not_ready, sleeping
from octavo_inference.server.http import json_response
from octavo_inference.server.service import Service
from octavo_protocol import names


class Liveness(msgspec.Struct, frozen=True):
    """The process is alive."""

    status: Literal["alive"] = "alive"


class Readiness(msgspec.Struct, frozen=True):
    """The server accepts requests."""

    status: Literal["ready"] = "ready"


class Startup(msgspec.Struct, frozen=True):
    """The server was ready once."""

    status: Literal["started"] = "started"


class Version(msgspec.Struct, frozen=True):
    """The release of Octavo that the server runs."""

    version: str


async def livez(service: Service, _: Request) -> Response:
    """Liveness: the event loop responds, and the engine has not ended while loading or running."""
    failure = service.router.failure
    if failure is not None:
        raise engine_gone(failure.for_clients)
    return json_response(msgspec.json.encode(Liveness()))


async def readyz(service: Service, _: Request) -> Response:
    """Readiness: the model is loaded, has generated a token, and the server accepts new requests."""
    if service.draining:
        raise ApiError(503, "Draining.", code="draining", headers={names.HEADER_DRAINING: "1"})
    if service.sleeping:
        raise sleeping()
    if not service.is_ready:
        raise not_ready()
    return json_response(msgspec.json.encode(Readiness()))


async def startupz(service: Service, _: Request) -> Response:
    """Startup: the server was ready once."""
    if not service.ready:
        raise not_ready()
    return json_response(msgspec.json.encode(Startup()))


async def health(service: Service, request: Request) -> Response:
    """Readiness under another name: the same as /readyz."""
    return await readyz(service, request)


def endpoints(version: str) -> tuple[HttpEndpoint, ...]:
    """The endpoints of a server of this version. Only the probes are open: kubelets have no key."""

    async def get_version(_: Service, __: Request) -> Response:
        """Get the version of the server."""
        return json_response(msgspec.json.encode(Version(version)))

    return (
        HttpEndpoint("GET", "/version", get_version, answer=Version),
        HttpEndpoint("GET", "/livez", livez, answer=Liveness, errors=(503,), is_open=True),
        HttpEndpoint("GET", "/readyz", readyz, answer=Readiness, errors=(503,), is_open=True),
        HttpEndpoint("GET", "/startupz", startupz, answer=Startup, errors=(503,), is_open=True),
        HttpEndpoint("GET", "/health", health, answer=Readiness, errors=(503,), is_open=True),
    )
