"""GET /: the page with the model, its settings and load, and a chat. Its files are those of `octavo_common.page`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo_common.page import FILES, HEADERS, PATH_STATE, ModelState, PageFile, PageState, replica_state
from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.http import json_response
from octavo_inference.server.service import Service


def page_endpoints(version: str) -> tuple[HttpEndpoint, ...]:
    """The endpoints of the page."""

    async def page_state(service: Service, _: Request) -> Response:
        """Get the model's names, settings and load, for the page."""
        return json_response(msgspec.json.encode(state_of(service, version)))

    files = (HttpEndpoint("GET", file.path, _sender(file), is_open=True) for file in FILES)
    return (*files, HttpEndpoint("GET", PATH_STATE, page_state))


def state_of(service: Service, version: str) -> PageState:
    """The numbers of this moment. A model that is loading has no replica."""
    report = service.report()
    replicas = [replica_state(report, ready=service.is_ready)] if report else []
    generates = service.loaded is None or service.loaded.info.task == "generate"
    model = ModelState(list(service.names), service.is_ready, replicas, generates)
    return PageState(version, [model], service.settings())


def _sender(file: PageFile) -> Callable[[Service, Request], Awaitable[Response]]:
    content = file.read()

    async def send(_: Service, __: Request) -> Response:
        """Get a file of the page."""
        return Response(content, media_type=file.media_type, headers=HEADERS)

    send.__name__ = file.name.replace(".", "_")
    return send
