"""GET /: the page with the model, its settings and load, and a chat. Its files are those of `octavo_common.page`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo_common.page import FILES, HEADERS, PATH_STATE, PageFile, PageState, replica_state
from octavo_common.page.rates import RecentRates, rates, rounded
from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.http import json_response
from octavo_inference.server.service import Service


def page_endpoints(version: str) -> tuple[HttpEndpoint, ...]:
    """The endpoints of the page."""
    recent = RecentRates()

    async def page_state(service: Service, _: Request) -> Response:
        """Get what the page shows: the model's settings and load."""
        return json_response(msgspec.json.encode(state_of(service, version, recent, time.monotonic())))

    files = (HttpEndpoint("GET", file.path, _sender(file), is_open=True) for file in FILES)
    return (*files, HttpEndpoint("GET", PATH_STATE, page_state))


def state_of(service: Service, version: str, recent: RecentRates, now: float) -> PageState:
    """The state at a moment. A model that is loading has no replica."""
    report, replicas = service.report(), []
    if report is not None:
        recent.add(report, now)
        replicas.append(replica_state(report, ready=service.is_ready))
    tokens, hits = rounded(rates([recent]))
    return PageState(
        version=version,
        ready=service.is_ready,
        replicas=replicas,
        tokens_per_second=tokens,
        prefix_hits=hits,
        generates=service.loaded is None or service.loaded.info.task == "generate",
        settings=service.settings(),
    )


def _sender(file: PageFile) -> Callable[[Service, Request], Awaitable[Response]]:
    content = file.read()

    async def send(_: Service, __: Request) -> Response:
        """Get a file of the page."""
        return Response(content, media_type=file.media_type, headers=HEADERS)

    send.__name__ = file.name.replace(".", "_")
    return send
