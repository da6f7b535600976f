"""The admin port: metrics, load report, drain, adapters and the prefix cache."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from octavo_inference.server.adapter_endpoints import ENDPOINTS as ADAPTER_ENDPOINTS
from octavo_inference.server.application import http_application
from octavo_inference.server.auth import Keys
from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.errors import invalid, not_ready
from octavo_inference.server.http import json_response
from octavo_inference.server.profile import ENDPOINTS as PROFILE_ENDPOINTS
from octavo_inference.server.service import Service
from octavo_inference.server.sleep import ENDPOINTS as SLEEP_ENDPOINTS
from octavo_protocol import load, names
from octavo_protocol.load import LoadReport

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Draining(msgspec.Struct, frozen=True):
    """The server takes no new requests from now on."""

    draining: Literal[True] = True


class CacheReset(msgspec.Struct, frozen=True):
    """The prefix cache is empty."""

    reset: Literal[True] = True


class LoadQuery(msgspec.Struct, frozen=True):
    """Parameters of the load report."""

    cache_after: Annotated[str, Meta(pattern=r"^[0-9]{1,18}\Z")] | None = None
    """`cache.sequence` of the reader's last report: adds the changes of the prefix cache since then. 0 for all."""


def admin_app(service: Service, keys: Keys | None, version: str, drain: Callable[[], None]) -> ASGIApp:
    """The app of the admin port: metrics, load report, drain, adapters, sleep, profile and prefix cache.

    For the cluster, not for clients. Without `keys`, anyone with network access may use it, so a NetworkPolicy must
    restrict access.
    """
    endpoints = admin_endpoints(drain)
    return http_application(service, endpoints, title="Octavo, admin port", version=version, keys=keys)


def admin_endpoints(drain: Callable[[], None]) -> tuple[HttpEndpoint, ...]:
    """The endpoints of the admin port. `drain` starts to drain the server."""

    @functools.cache
    def load_renderer(service: Service) -> Callable[[], bytes]:
        from octavo_inference.server.prometheus import renderer  # noqa: PLC0415 -- not before the first token

        return renderer(service)

    async def get_metrics(service: Service, _: Request) -> Response:
        """Get the metrics in Prometheus' text format."""
        render = await asyncio.to_thread(load_renderer, service)
        return Response(render(), media_type=METRICS_TYPE)

    async def post_drain(_: Service, __: Request) -> Response:
        """Take no new requests; running ones finish."""
        drain()
        return json_response(msgspec.json.encode(Draining()), 202)

    return (
        HttpEndpoint("GET", "/metrics", get_metrics, answer=str, media="text/plain"),
        HttpEndpoint("GET", names.PATH_LOAD, get_load, answer=LoadReport, query=LoadQuery, errors=(400, 503)),
        HttpEndpoint("POST", names.PATH_DRAIN, post_drain, answer=Draining, status=202),
        HttpEndpoint("POST", names.PATH_CACHE_RESET, reset_cache, answer=CacheReset, errors=(503,)),
        *ADAPTER_ENDPOINTS,
        *SLEEP_ENDPOINTS,
        *PROFILE_ENDPOINTS,
    )


async def get_load(service: Service, request: Request) -> Response:
    """The load report. Includes prefix cache changes if the reader requests them."""
    report = service.report(_cache_after(request))
    if report is None:
        raise not_ready()
    return json_response(load.encode(report))


async def reset_cache(service: Service, _: Request) -> Response:
    """Reset the prefix cache: requests after this response match nothing computed before."""
    if service.loaded is None:
        raise not_ready()
    service.router.reset_cache()
    return json_response(msgspec.json.encode(CacheReset()))


def _cache_after(request: Request) -> int | None:
    given = request.query_params.getlist(names.QUERY_CACHE_AFTER)
    if not given:
        return None
    if len(given) > 1 or re.fullmatch(r"[0-9]{1,18}", given[0]) is None:
        raise invalid(
            f"{names.QUERY_CACHE_AFTER}: {', '.join(given)[:64]!r} is no sequence; give that of the last report, or 0.",
            names.QUERY_CACHE_AFTER,
        )
    return int(given[0])
