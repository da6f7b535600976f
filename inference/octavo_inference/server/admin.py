"""The admin port: metrics, load report, drain and the prefix cache."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from octavo_inference.server.auth import Keys
from octavo_inference.server.endpoint import HttpEndpoint, http_router
from octavo_inference.server.errors import invalid, not_ready
from octavo_inference.server.http import RequestGuard, json_response
from octavo_inference.server.service import Service
from octavo_inference.server.sleep import Sleeper
from octavo_protocol import load, names

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def admin_app(service: Service, keys: Keys | None, drain: Callable[[], None], sleeper: Sleeper) -> ASGIApp:
    """The app of the admin port: metrics, load report, drain, sleep and prefix cache.

    For the cluster, not for clients. Without `keys`, anyone with network access may use it, so a NetworkPolicy must
    restrict access.
    """

    @functools.cache
    def load_renderer() -> Callable[[], bytes]:
        from octavo_inference.server.prometheus import renderer  # noqa: PLC0415 -- not before the first token

        return renderer(service)

    async def get_metrics(_: Service, __: Request) -> Response:
        render = await asyncio.to_thread(load_renderer)
        return Response(render(), media_type=METRICS_TYPE)

    async def post_drain(_: Service, __: Request) -> Response:
        drain()
        return json_response(b'{"draining":true}', 202)

    async def get_sleep(_: Service, __: Request) -> Response:
        return json_response(msgspec.json.encode(sleeper.state()))

    async def post_sleep(_: Service, __: Request) -> Response:
        return json_response(msgspec.json.encode(await sleeper.sleep()))

    async def post_wake_up(_: Service, __: Request) -> Response:
        return json_response(msgspec.json.encode(await sleeper.wake()))

    endpoints = [
        HttpEndpoint("GET", "/metrics", get_metrics),
        HttpEndpoint("GET", names.PATH_LOAD, get_load),
        HttpEndpoint("POST", names.PATH_DRAIN, post_drain),
        HttpEndpoint("POST", names.PATH_CACHE_RESET, reset_cache),
        HttpEndpoint("GET", names.PATH_SLEEP, get_sleep),
        HttpEndpoint("POST", names.PATH_SLEEP, post_sleep),
        HttpEndpoint("POST", names.PATH_WAKE_UP, post_wake_up),
    ]
    return RequestGuard(http_router(service, endpoints), keys=keys)


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
    return json_response(b'{"reset":true}')


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
