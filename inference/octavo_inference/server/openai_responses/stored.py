"""The endpoints of one stored response: retrieve, cancel, delete, and list its input items."""

from __future__ import annotations

import re

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.server.errors import ApiError, invalid
from octavo_inference.server.http import KEEP_ALIVE_SECONDS, EventStream, json_response
from octavo_inference.server.openai_responses.items import MessageItem
from octavo_inference.server.openai_responses.resource import DeletedResponse, ItemPage
from octavo_inference.server.openai_responses.store import StoredResponse
from octavo_inference.server.prompts import tenant_of
from octavo_inference.server.service import Service

DEFAULT_PAGE = 20
MAX_PAGE = 100
_encode = msgspec.json.Encoder().encode


async def get_response(service: Service, request: HttpRequest) -> Response:
    """The response as it is now. With `?stream=true`, the events of a background response, from the start or later."""
    entry = _find(service, request)
    stream = _choice(request, "stream", ("false", "true"), "false") == "true"
    after = _number(request, "starting_after", 0, 2**31 - 1)
    obfuscate = _choice(request, "include_obfuscation", ("false", "true"), "false") == "true"
    if not stream:
        if after is not None:
            raise invalid("starting_after: needs stream=true.", "starting_after")
        return json_response(_encode(entry.current()))
    if entry.run is None:
        raise invalid("stream: only a response with background true can be streamed again; supported: false.", "stream")
    events = entry.run.follow(-1 if after is None else after, KEEP_ALIVE_SECONDS, obfuscate=obfuscate)
    return EventStream(events, {}, end=b"")


async def cancel_response(service: Service, request: HttpRequest) -> Response:
    """Stop a background response. Returns it, also if it had ended before."""
    entry = _find(service, request)
    response = await entry.run.cancel() if entry.run is not None else entry.current()
    if not response.background:
        raise invalid("Only a response with background true can be cancelled.", "response_id", "not_in_background")
    return json_response(_encode(response))


async def delete_response(service: Service, request: HttpRequest) -> Response:
    """Forget a response. A running one is stopped."""
    entry = _find(service, request)
    service.responses.remove(entry.tenant, entry.id)
    if entry.run is not None:
        await entry.run.cancel()
    return json_response(_encode(DeletedResponse(entry.id)))


async def list_input_items(service: Service, request: HttpRequest) -> Response:
    """A page of the items before the answer, those of earlier responses included; the newest first by default."""
    entry = _find(service, request)
    limit = _number(request, "limit", 1, MAX_PAGE)
    order = _choice(request, "order", ("asc", "desc"), "desc")
    items = entry.items()
    if order == "desc":
        items.reverse()
    after = request.query_params.get("after")
    return json_response(_encode(_page(items, after, DEFAULT_PAGE if limit is None else limit)))


def _page(items: list[MessageItem], after: str | None, limit: int) -> ItemPage:
    start = 0
    if after is not None:
        found = [number for number, item in enumerate(items) if item.id == after]
        if not found:
            raise invalid(f"after: the response has no item {after[:128]!r}; give last_id of the page before.", "after")
        start = found[0] + 1
    page = items[start : start + limit]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return ItemPage(page, first, last, start + limit < len(items))


def _find(service: Service, request: HttpRequest) -> StoredResponse:
    name: str = request.path_params["response_id"]
    entry = service.responses.get(tenant_of(service, request), name)
    if entry is None:
        why = "" if service.responses.enabled else " This server stores no responses."
        raise ApiError(
            404, f"Response with id {name[:128]!r} not found.{why}", param="response_id", code="response_not_found"
        )
    return entry


def _choice(request: HttpRequest, name: str, choices: tuple[str, str], default: str) -> str:
    given = request.query_params.get(name, default)
    if given not in choices:
        raise invalid(f"{name}: {given[:64]!r} is not supported; supported: {', '.join(choices)}.", name)
    return given


def _number(request: HttpRequest, name: str, low: int, high: int) -> int | None:
    given = request.query_params.get(name)
    if given is None:
        return None
    if re.fullmatch(r"[0-9]{1,10}", given) is None or not low <= int(given) <= high:
        raise invalid(f"{name}: {given[:64]!r} is not a whole number from {low} to {high}.", name)
    return int(given)
