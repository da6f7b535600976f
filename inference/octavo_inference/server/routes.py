"""The two ports: which path does what, and which need no key."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo_inference.server.auth import Keys
from octavo_inference.server.http import RequestGuard, json_response
from octavo_inference.server.openai.chat import chat_completions
from octavo_inference.server.openai.completions import completions
from octavo_inference.server.openai.errors import ApiError, invalid, model_not_found, not_ready
from octavo_inference.server.openai.responses import ModelList, ModelObject
from octavo_inference.server.service import Service
from octavo_protocol import load, names

OPEN_PATHS = frozenset({"/livez", "/readyz", "/startupz", "/health"})
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Endpoint = Callable[[Service, Request], Awaitable[Response]]


def public_app(service: Service, keys: Keys | None, version: str) -> ASGIApp:
    """The API port. With `keys`, every path needs one, also one that does not exist; the probes do not."""

    async def get_version(_: Service, __: Request) -> Response:
        return json_response(msgspec.json.encode({"version": version}))

    routes = [
        _route("/v1/models", models, service, "GET"),
        _route("/v1/models/{name:path}", model, service, "GET"),
        _route("/v1/chat/completions", chat_completions, service, "POST"),
        _route("/v1/completions", completions, service, "POST"),
        _route("/version", get_version, service, "GET"),
        _route("/livez", livez, service, "GET"),
        _route("/readyz", readyz, service, "GET"),
        _route("/startupz", startupz, service, "GET"),
        _route("/health", readyz, service, "GET"),
    ]
    return RequestGuard(_router(routes), keys=keys, open_paths=OPEN_PATHS)


def admin_app(service: Service, keys: Keys | None, drain: Callable[[], None]) -> ASGIApp:
    """The port of metrics, load report and drain.

    For the cluster, not for clients: without `keys` whoever reaches it may use it, so a NetworkPolicy keeps others out.
    """

    @functools.cache
    def renderer() -> Callable[[], bytes]:
        from octavo_inference.server.prometheus import exposition  # noqa: PLC0415 -- not before the first token

        return exposition(service)

    async def get_metrics(_: Service, __: Request) -> Response:
        render = await asyncio.to_thread(renderer)
        return Response(render(), media_type=METRICS_TYPE)

    async def post_drain(_: Service, __: Request) -> Response:
        drain()
        return json_response(b'{"draining":true}', 202)

    routes = [
        _route("/metrics", get_metrics, service, "GET"),
        _route(names.PATH_LOAD, get_load, service, "GET"),
        _route(names.PATH_DRAIN, post_drain, service, "POST"),
        _route(names.PATH_CACHE_RESET, reset_cache, service, "POST"),
    ]
    return RequestGuard(_router(routes), keys=keys)


async def models(service: Service, _: Request) -> Response:
    """All names the model answers to."""
    return json_response(msgspec.json.encode(ModelList([_model(service, name) for name in service.names])))


async def model(service: Service, request: Request) -> Response:
    """One of them."""
    name = request.path_params["name"]
    if name not in service.names:
        raise model_not_found(name, service.names[0])
    return json_response(msgspec.json.encode(_model(service, name)))


async def livez(service: Service, _: Request) -> Response:
    """Alive: this loop answers and the engine, loading or working, has not ended."""
    failure = service.client.hub.failure
    if failure is not None:
        raise ApiError(500, str(failure), code="engine_error")
    return json_response(b'{"status":"alive"}')


async def readyz(service: Service, _: Request) -> Response:
    """Ready: the model is loaded, has generated a token, and new requests are welcome."""
    if service.draining:
        raise ApiError(503, "Draining.", code="draining", headers={names.HEADER_DRAINING: "1"})
    if not service.is_ready:
        raise not_ready()
    return json_response(b'{"status":"ready"}')


async def startupz(service: Service, _: Request) -> Response:
    """Started: was ready once, whatever came after."""
    if not service.ready:
        raise not_ready()
    return json_response(b'{"status":"started"}')


async def get_load(service: Service, request: Request) -> Response:
    """The load report, with what changed in the prefix cache for who asks for it."""
    report = service.report(_cache_after(request))
    if report is None:
        raise not_ready()
    return json_response(load.encode(report))


async def reset_cache(service: Service, _: Request) -> Response:
    """Forget all prefixes: no request that comes after this answer finds what was computed before."""
    if service.loaded is None:
        raise not_ready()
    service.client.hub.reset_cache()
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


def _model(service: Service, name: str) -> ModelObject:
    limit = service.loaded.info.max_model_len if service.loaded else None
    return ModelObject(name, int(service.start_time), service.names[0], limit)


def _route(path: str, endpoint: Endpoint, service: Service, method: str) -> Route:
    async def call(request: Request) -> Response:
        return await endpoint(service, request)

    return Route(path, call, methods=[method])


def _router(routes: list[Route]) -> Router:
    async def not_found(_: Scope, __: Receive, ___: Send) -> None:
        raise HTTPException(404)

    return Router(routes, redirect_slashes=False, default=not_found)
