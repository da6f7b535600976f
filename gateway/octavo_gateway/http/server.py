"""The two HTTP servers: the OpenAI endpoint for clients, and the second port for operator and Prometheus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from random import getrandbits
from time import perf_counter

import msgspec
from aiohttp import HttpVersion11, web
from prometheus_client import CONTENT_TYPE_LATEST

from octavo_gateway.access.api_keys import ANYBODY, ApiKey
from octavo_gateway.access.control import AccessControl
from octavo_gateway.access.limit_gossip import Word
from octavo_gateway.http import headers
from octavo_gateway.http.call import Call
from octavo_gateway.http.client_response import error_response
from octavo_gateway.http.connection import HttpConnection
from octavo_gateway.http.proxy import Proxy
from octavo_gateway.metrics import UNKNOWN, GatewayMetrics, label
from octavo_gateway.openai import ApiError, model_list, model_object, most_output, read_head, unknown_model
from octavo_gateway.pool.model_pool import ModelPool
from octavo_gateway.pool.registry import ModelRegistry
from octavo_gateway.queueing.hold_queue import RequestAttributes
from octavo_protocol import load
from octavo_protocol.names import PATH_LOAD, PATH_PEERS

log = logging.getLogger(__name__)

MAX_BODY = 8 * 1024 * 1024
BODY_SECONDS = 60.0
# For metrics only: no answer reached the client.
CLIENT_GONE = 499
CHAT = "/v1/chat/completions"
# Routes that need no key; every other one requires it.
OPEN_PATHS = frozenset({"/livez", "/readyz"})

_ID = web.RequestKey("id", str)
_MODEL = web.RequestKey("model", str)
_ENTRY = web.RequestKey("entry", ApiKey)
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
    proxy: Proxy
    metrics: GatewayMetrics
    status: HealthEndpoints
    access: AccessControl
    body_seconds: float = BODY_SECONDS
    version: str = field(default_factory=lambda: version("octavo"))

    def app(self) -> web.Application:
        """The application for the public port."""
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._guard])
        app.on_response_prepare.append(_anonymous)
        app.router.add_post(CHAT, self._complete, expect_handler=_later)
        app.router.add_post("/v1/completions", self._complete, expect_handler=_later)
        app.router.add_get("/v1/models", self._models, allow_head=False)
        app.router.add_get("/v1/models/{model:.+}", self._model, allow_head=False)
        app.router.add_get("/livez", self._alive, allow_head=False)
        app.router.add_get("/readyz", self._ready, allow_head=False)
        app.router.add_get("/version", self._version, allow_head=False)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Handle request id, key and errors for every route, unknown ones included."""
        request_id = headers.request_id(request.headers, _fresh_id)
        request[_ID] = request_id
        self.status.requests += 1
        self.status.idle.clear()
        connection = request.protocol
        try:
            if isinstance(connection, HttpConnection):
                connection.begin(request)
            self._admit(request)
            response = await handler(request)
        except ApiError as error:
            response = error_response(error, request_id)
        except web.HTTPException as refused:
            response = error_response(_refusal(refused, request), request_id)
            response.headers.update({"Allow": refused.headers["Allow"]} if "Allow" in refused.headers else {})
        except web.RequestPayloadError:
            malformed = ApiError(400, "the body is not framed as its headers say", close=True)
            response = error_response(malformed, request_id)
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
            response = error_response(ApiError(500, f"internal error; request {request_id}"), request_id)
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
        if request.method == "POST":
            self.metrics.requests.labels(request.get(_MODEL, UNKNOWN), str(code)).inc()
            entry = request.get(_ENTRY, ANYBODY)
            if entry is not ANYBODY:
                self.metrics.key_requests.labels(self.metrics.key(entry.name), str(code)).inc()

    def _admit(self, request: web.Request) -> None:
        if not request.raw_path.startswith("/"):
            raise ApiError(400, "the request line must carry a path, not an absolute address", close=True)
        if request.path not in OPEN_PATHS:
            request[_ENTRY] = self.access.identify(request.headers)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        started = perf_counter()
        if request.content_type != "application/json":
            raise ApiError(415, f"Content-Type is {request.content_type}; send application/json")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise ApiError(415, "a compressed body is not accepted; send it without Content-Encoding")
        body = await _body(request, self.body_seconds)
        head = read_head(body)
        pool = self._find(head.model, request[_ENTRY])
        request[_MODEL] = label(pool)
        entry = request[_ENTRY]
        session = request.headers.get(pool.deployment.session_header)
        prompt = pool.prompt(head.text(chat=request.path == CHAT), entry.tenant, bytes(head.cache_salt), session)
        grant = self.access.enter(entry, prompt.tokens, head.priority)
        try:
            attributes = RequestAttributes(entry.tenant, grant.priority, most_output(head))
            limit = headers.timeout(request.headers)
            call = Call(request.path, body, bool(head.stream), prompt, request[_ID], started, grant, attributes, limit)
            return await self.proxy.forward(request, pool, call)
        finally:
            self.access.leave(grant)

    def _find(self, model: str, entry: ApiKey) -> ModelPool:
        """The deployment of a model that the caller may use. Raises `ApiError` 404."""
        pool = self.registry.find(model)
        if pool is None or not entry.may_use(pool.deployment.names):
            raise unknown_model(model)
        return pool

    async def _models(self, request: web.Request) -> web.Response:
        entry = request[_ENTRY]
        return _json(model_list(one for one in self.registry.deployments() if entry.may_use(one.names)))

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        return _json(model_object(name, self._find(name, request[_ENTRY]).deployment))

    async def _alive(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _ready(self, _: web.Request) -> web.Response:
        if self.status.draining:
            return web.Response(status=503, text="draining")
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
    word: Callable[[], Word]

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
        return _json(msgspec.json.encode(self.word()))

    async def _load(self, _: web.Request) -> web.Response:
        self.status.sequence += 1
        report = load.GatewayReport(
            sequence=self.status.sequence,
            start_time=self.status.start_time,
            models=[pool.traffic() for pool in self.registry.pools()] if self.status.synced else [],
        )
        return _json(load.encode(report))


async def _later(_: web.Request) -> None:
    """Delays `100 Continue` until the request is admitted: `_body` sends it."""


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


async def _body(request: web.Request, seconds: float) -> bytes:
    """The body. Raises `ApiError` 408 if it arrives too slowly, and aiohttp's 413 if it is too long."""
    if (request.content_length or 0) > MAX_BODY:
        raise web.HTTPRequestEntityTooLarge(MAX_BODY, request.content_length or 0)
    expect = request.headers.get("Expect")
    if expect is not None and request.version >= HttpVersion11:
        if expect.lower() != "100-continue":
            raise ApiError(417, "the only expectation that can be met is 100-continue")
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # An interim response does not count as output: the final one may still become an error.
        request.writer.output_size = 0
    if request.content.is_eof():  # Most bodies arrive with their heads.
        return await request.read()
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except TimeoutError:
        raise ApiError(408, f"the body was not complete within {seconds:g} s", close=True) from None


def _log_gone(request: web.Request) -> None:
    if not request.content.is_eof():
        fields = {"request_id": request[_ID], "status": CLIENT_GONE}
        log.info("the client left before its request was complete", extra=fields)


def _fresh_id() -> str:
    """A request id: unique, not secret."""
    return f"{getrandbits(128):032x}"


async def _anonymous(_: web.Request, response: web.StreamResponse) -> None:
    """Remove the name and version of the library from the headers."""
    response.headers.pop("Server", None)


def _json(data: bytes) -> web.Response:
    return web.Response(body=data, content_type="application/json")


def _refusal(refused: web.HTTPException, request: web.Request) -> ApiError:
    """A refusal of aiohttp as an error object."""
    messages = {
        404: "no such path; the endpoints are /v1/chat/completions, /v1/completions and /v1/models",
        405: f"{request.method} is not allowed here",
        413: f"the body is larger than {MAX_BODY} bytes",
    }
    return ApiError(refused.status, messages.get(refused.status, refused.reason), code=None)
