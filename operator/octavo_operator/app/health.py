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
    """What the server asks its process. `unhealthy` and `unready` say why, or are empty."""

    unhealthy: Callable[[], str]
    unready: Callable[[], str]
    leading: Callable[[], bool]
    wake: Callable[[Key], int | None]
    metrics: OperatorMetrics


def application(answers: ProcessState) -> web.Application:
    """The routes."""

    async def healthz(_: web.Request) -> web.Response:
        return _verdict(answers.unhealthy())

    async def readyz(_: web.Request) -> web.Response:
        return _verdict(answers.unready())

    async def metrics(_: web.Request) -> web.Response:
        # A quarter of a second for thousands of resources: not on the loop that renews the Lease.
        text = await asyncio.to_thread(answers.metrics.text)
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def wake(request: web.Request) -> web.Response:
        if not answers.leading():
            return web.Response(status=MISDIRECTED)
        try:
            wanted = msgspec.json.decode(await request.read(), type=Wake)
        except msgspec.MsgspecError as error:
            return web.json_response({"error": f'the body must be {{"namespace": …, "name": …}}: {error}'}, status=400)
        replicas = answers.wake(Key(wanted.namespace, wanted.name))
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


def _verdict(trouble: str) -> web.Response:
    return web.Response(text=trouble or "ok", status=503 if trouble else 200)
