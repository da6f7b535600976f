"""GET /: a page in three files of this folder, and the numbers that it shows.

The files need no key: a browser sends none with a page, and they hold nothing of the model. Everything else that the
page shows comes from endpoints that ask for the key, if the server has keys.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.http import json_response
from octavo_inference.server.service import Service

FOLDER = Path(__file__).parent
# Nothing from other hosts, and no script or style within the page.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class PageLoad(msgspec.Struct, frozen=True):
    """The engine's load. Shares are from 0 to 1; tokens are counted since the start."""

    kv_pool: float
    running: int
    waiting: int
    generated_tokens: int
    prompt_tokens: int
    prefix_hit_tokens: int


class PageState(msgspec.Struct, frozen=True):
    """What the page shows. Without `load` the model is loading."""

    version: str
    models: list[str]
    ready: bool
    generates: bool
    settings: dict[str, str]
    load: PageLoad | None = None


def page_endpoints(version: str) -> tuple[HttpEndpoint, ...]:
    """The endpoints of the page."""

    async def page_state(service: Service, _: Request) -> Response:
        """Get the model's names, settings and load, for the page."""
        return json_response(msgspec.json.encode(state_of(service, version)))

    return (
        HttpEndpoint("GET", "/", page, is_open=True),
        HttpEndpoint("GET", "/page/page.css", page_style, is_open=True),
        HttpEndpoint("GET", "/page/page.js", page_script, is_open=True),
        HttpEndpoint("GET", "/page/state", page_state),
    )


async def page(_: Service, __: Request) -> Response:
    """Get the page."""
    return await _file("page.html", "text/html")


async def page_style(_: Service, __: Request) -> Response:
    """Get its style."""
    return await _file("page.css", "text/css")


async def page_script(_: Service, __: Request) -> Response:
    """Get its script."""
    return await _file("page.js", "text/javascript")


def state_of(service: Service, version: str) -> PageState:
    """The numbers of this moment."""
    report = service.report()
    load = report and PageLoad(
        report.kv_occupancy,
        report.running,
        report.waiting,
        report.generation_tokens,
        report.prompt_tokens,
        report.prefix_hit_tokens,
    )
    generates = service.loaded is None or service.loaded.info.task == "generate"
    return PageState(version, list(service.names), service.is_ready, generates, service.settings(), load)


async def _file(name: str, media: str) -> Response:
    return await asyncio.to_thread(FileResponse, FOLDER / name, media_type=media, headers=_HEADERS)
