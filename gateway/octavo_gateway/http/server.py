"""The two HTTP servers: the public routes for clients, and the second port for operator and Prometheus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from random import getrandbits

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from octavo_gateway.access.api_keys import ANYBODY
from octavo_gateway.access.control import AccessControl
from octavo_gateway.access.limit_gossip import GossipMessage
from octavo_gateway.api.errors import ApiError, ErrorForm
from octavo_gateway.api.model_list import (
    ModelEntry,
    anthropic_list,
    anthropic_model,
    entries_of,
    model_list,
    model_object,
)
from octavo_gateway.http import headers
from octavo_gateway.http.client_response import error_response, form_of
from octavo_gateway.http.connection import HttpConnection
from octavo_gateway.http.forwarding import Forwarding
from octavo_gateway.http.page import PAGE_PATHS, Page
from octavo_gateway.http.request_body import later
from octavo_gateway.http.request_keys import ENTRY, ID, MODEL, ROUTE
from octavo_gateway.metrics import UNKNOWN, GatewayMetrics
from octavo_gateway.pool.registry import ModelRegistry, NamedModel
from octavo_protocol import load
from octavo_protocol.names import PATH_LOAD, PATH_PEERS
from octavo_protocol.routes import BODY_LIMIT, OPEN_PATHS, ROUTES, Route, Work

log = logging.getLogger(__name__)

# For metrics only: no answer reached the client.
CLIENT_GONE = 499
# The endpoints that a message names: all of them would fill a page.
_ENDPOINTS = ", ".join(route.template for route in ROUTES if route.work is not Work.READ and route.path[:3] == "/v1")

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class HealthEndpoints:
    """State of the gateway for its probes and its drain.

    `synced`: the first table was read, which sets `ready`. `requests`: number of open requests; `idle` is set when the
    last one ends.
    """

    start_time: float
    synced: bool = False
    draining: bool = False
    requests: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    sequence: int = 0


@dataclass(slots=True)
class Api:
    """Handlers of the client side."""

    registry: ModelRegistry
    forwarding: Forwarding
    metrics: GatewayMetrics
    status: HealthEndpoints
    access: AccessControl
    page: bool = True
    version: str = field(default_factory=lambda: version("octavo"))

    def app(self) -> web.Application:
        """The application for the public port, with all routes of `octavo_protocol.routes` and the page."""
        own: dict[str, _Handler] = {
            "/v1/models": self._models,
            "/v1/models/{id}": self._model,
            "/livez": self._alive,
            "/readyz": self._ready,
            "/startupz": self._started,
            "/health": self._ready,
            "/version": self._version,
        }
        app = web.Application(client_max_size=BODY_LIMIT, middlewares=[self._guard])
        app.on_response_prepare.append(_anonymous)
        for route in ROUTES:
            handler = own.get(route.template) or self._forwarded(route)
            # aiohttp's parameters are one segment unless they have a pattern.
            path = route.path.replace(":path}", ":.+}")
            app.router.add_route(route.method, path, handler, expect_handler=later)
        if self.page:
            Page(lambda request, model: self.forwarding.find(model, request[ENTRY]).pool, self.version).add_to(app)
        return app

    def _forwarded(self, route: Route) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            request[ROUTE] = route.template
            return await self.forwarding.forward(route, request)

        return handle

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Handle request id, key and errors for every route, unknown ones included."""
        request_id = headers.request_id(request.headers, _fresh_id)
        request[ID] = request_id
        form = form_of(request)
        self.status.requests += 1
        self.status.idle.clear()
        connection = request.protocol
        try:
            if isinstance(connection, HttpConnection):
                connection.begin(request)
            self._admit(request)
            response = await handler(request)
        except ApiError as error:
            response = error_response(error, request_id, form)
        except web.HTTPException as refused:
            response = error_response(_refusal(refused, request), request_id, form)
            response.headers.update({"Allow": await _allowed(request)} if refused.status == 405 else {})
        except web.RequestPayloadError:
            malformed = ApiError(400, "the body is not framed as its headers say", close=True)
            response = error_response(malformed, request_id, form)
        except asyncio.CancelledError:
            _log_gone(request)
            self._count(request, CLIENT_GONE)
            raise
        except ConnectionError:
            # The client disconnected during a read or write; aiohttp drops this response.
            _log_gone(request)
            response = web.Response(status=CLIENT_GONE)
        except Exception:
            log.exception("request failed", extra={"request_id": request_id})
            response = error_response(ApiError(500, f"internal error; request {request_id}"), request_id, form)
        finally:
            if isinstance(connection, HttpConnection):
                connection.end()
            self.status.requests -= 1
            if not self.status.requests:
                self.status.idle.set()
        if self.status.draining:
            response.force_close()
        self._count(request, response.status)
        if not response.prepared:
            response.headers.setdefault("X-Request-Id", request_id)
        return response

    def _count(self, request: web.Request, code: int) -> None:
        # Not those for models, version and probes, which the gateway answers itself.
        if request.method == "POST" or ROUTE in request:
            labels = request.get(MODEL, UNKNOWN), request.get(ROUTE, UNKNOWN), str(code)
            self.metrics.requests.labels(*labels).inc()
            entry = request.get(ENTRY, ANYBODY)
            if entry is not ANYBODY:
                self.metrics.key_requests.labels(self.metrics.key(entry.name), str(code)).inc()

    def _admit(self, request: web.Request) -> None:
        if not request.raw_path.startswith("/"):
            raise ApiError(400, "the request line must carry a path, not an absolute address", close=True)
        if request.path not in OPEN_PATHS and not (self.page and request.path in PAGE_PATHS):
            request[ENTRY] = self.access.identify(request.headers)

    async def _models(self, request: web.Request) -> web.Response:
        entry = request[ENTRY]
        visible = [each for model in self.registry.models() if entry.may_use(model.names) for each in _entries(model)]
        if form_of(request) is ErrorForm.ANTHROPIC:
            return _json(anthropic_list(visible, request.query))
        return _json(model_list(visible))

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        # NAMESPACE/NAME is a name too, but is not listed.
        entry = _entries(self.forwarding.find(name, request[ENTRY]))[0]._replace(name=name)
        anthropic = form_of(request) is ErrorForm.ANTHROPIC
        return _json((anthropic_model if anthropic else model_object)(entry))

    async def _alive(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _ready(self, _: web.Request) -> web.Response:
        if self.status.draining:
            return web.Response(status=503, text="draining")
        if not self.status.synced:
            return web.Response(status=503, text="the list of models is not read yet")
        return web.Response(text="ok")

    async def _started(self, _: web.Request) -> web.Response:
        if not self.status.synced:
            return web.Response(status=503, text="the list of models is not read yet")
        return web.Response(text="ok")

    async def _version(self, _: web.Request) -> web.Response:
        return _json(msgspec.json.encode({"version": self.version}))


@dataclass(slots=True)
class Admin:
    """Handlers of the second port."""

    registry: ModelRegistry
    metrics: GatewayMetrics
    status: HealthEndpoints
    gossip_message: Callable[[], GossipMessage]

    def app(self) -> web.Application:
        """The application for the second port."""
        app = web.Application(middlewares=[bounded])
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get(PATH_LOAD, self._load)
        app.router.add_get(PATH_PEERS, self._peers)
        return app

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _peers(self, _: web.Request) -> web.Response:
        return _json(msgspec.json.encode(self.gossip_message()))

    async def _load(self, _: web.Request) -> web.Response:
        self.status.sequence += 1
        report = load.GatewayReport(
            sequence=self.status.sequence,
            start_time=self.status.start_time,
            models=[pool.traffic() for pool in self.registry.pools()] if self.status.synced else [],
        )
        return _json(load.encode(report))


@web.middleware
async def bounded(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Middleware: reports head and answer of each request to the connection, as the guard of `Api` does."""
    connection = request.protocol
    if not isinstance(connection, HttpConnection):
        return await handler(request)
    try:
        connection.begin(request)
        return await handler(request)
    except ApiError as error:
        return error_response(error, _fresh_id())
    finally:
        connection.end()


def _log_gone(request: web.Request) -> None:
    if not request.content.is_eof():
        fields = {"request_id": request[ID], "status": CLIENT_GONE}
        log.info("the client left before its request was complete", extra=fields)


def _fresh_id() -> str:
    """A request id: unique, not secret."""
    return f"{getrandbits(128):032x}"


async def _anonymous(_: web.Request, response: web.StreamResponse) -> None:
    """Remove the name and version of the library from the headers."""
    response.headers.pop("Server", None)


def _entries(model: NamedModel) -> list[ModelEntry]:
    deployment = model.pool.deployment
    return entries_of(deployment.models, model.adapter, deployment.created)


def _json(data: bytes) -> web.Response:
    return web.Response(body=data, content_type="application/json")


async def _allowed(request: web.Request) -> str:
    """The methods of the path that matches first: one with a parameter may match after it."""
    for resource in request.app.router.resources():
        _, methods = await resource.resolve(request)
        if methods:
            return ",".join(sorted(methods))
    return ""


def _refusal(refused: web.HTTPException, request: web.Request) -> ApiError:
    """A refusal of aiohttp as an error object."""
    messages = {
        404: f"no such path; the endpoints are {_ENDPOINTS}",
        405: f"{request.method} is not allowed here",
        413: f"the body is larger than {BODY_LIMIT} bytes",
    }
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(refused.status)
    return ApiError(refused.status, messages.get(refused.status, refused.reason), code=code)
