"""The operator's own HTTP server: health, metrics, and the wake call of the gateways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from aiohttp import web

from octavo_operator.api.resource import Key
from octavo_operator.metrics.process import OperatorMetrics
from octavo_protocol import names

_BODY_LIMIT = 4096
MISDIRECTED = 421


class Wake(msgspec.Struct, frozen=True):
    """A gateway holds a request for this LLMDeployment."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Callbacks of the HTTP server into the process. `unhealthy` and `unready` return the reason, or ''."""

    unhealthy: Callable[[], str]
    unready: Callable[[], str]
    leading: Callable[[], bool]
    wake: Callable[[Key], int | None]
    metrics: OperatorMetrics


def application(process: ProcessState) -> web.Application:
    """The aiohttp application with all routes."""

    async def healthz(_: web.Request) -> web.Response:
        return _probe_response(process.unhealthy())

    async def readyz(_: web.Request) -> web.Response:
        return _probe_response(process.unready())

    async def metrics(_: web.Request) -> web.Response:
        # Takes 0.25 s for thousands of resources, so it runs in a thread: the event loop renews the Lease.
        text = await asyncio.to_thread(process.metrics.text)
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def wake(request: web.Request) -> web.Response:
        if not process.leading():
            return web.Response(status=MISDIRECTED)
        try:
            wanted = msgspec.json.decode(await request.read(), type=Wake)
        except msgspec.MsgspecError as error:
            return web.json_response({"error": f'the body must be {{"namespace": …, "name": …}}: {error}'}, status=400)
        replicas = process.wake(Key(wanted.namespace, wanted.name))
        if replicas is None:
            return web.json_response({"error": f"no LLMDeployment {wanted.namespace}/{wanted.name}"}, status=404)
        return web.json_response({"replicas": replicas}, status=202)

    app = web.Application(client_max_size=_BODY_LIMIT)
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics),
            web.post(names.PATH_WAKE, wake),
        ]
    )
    return app


def _probe_response(problem: str) -> web.Response:
    return web.Response(text=problem or "ok", status=503 if problem else 200)
