"""The endpoints of one stored response: retrieve, cancel, delete, and list its input items."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.server.errors import ApiError, invalid
from octavo_inference.server.http import KEEP_ALIVE_SECONDS, EventStream, json_response
from octavo_inference.server.openai_responses.items import Item
from octavo_inference.server.openai_responses.resource import DeletedResponse, ItemPage
from octavo_inference.server.openai_responses.store import StoredResponse
from octavo_inference.server.prompts import tenant_of
from octavo_inference.server.service import Service

Query = TypeVar("Query", bound=msgspec.Struct)
_encode = msgspec.json.Encoder().encode


class RetrieveQuery(msgspec.Struct, frozen=True):
    """The query of GET /v1/responses/{id}. `starting_after` is the number of the last event that the client has."""

    stream: bool = False
    starting_after: Annotated[int, Meta(ge=0, le=2**31 - 1)] | msgspec.UnsetType = msgspec.UNSET
    include_obfuscation: bool = False


class InputItemsQuery(msgspec.Struct, frozen=True):
    """The query of GET /v1/responses/{id}/input_items. `after` is the id of the last item of the page before."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


async def get_response(service: Service, request: HttpRequest) -> Response:
    """The response as it is now. With `?stream=true`, the events of a background response, from the start or later."""
    entry = _find(service, request)
    query = _query(request, RetrieveQuery)
    after = query.starting_after
    if not query.stream:
        if after is not msgspec.UNSET:
            raise invalid("starting_after: needs stream=true.", "starting_after")
        return json_response(entry.current())
    if entry.run is None:
        raise invalid("stream: only a response with background true can be streamed again; supported: false.", "stream")
    start = -1 if after is msgspec.UNSET else after
    events = entry.run.follow(start, KEEP_ALIVE_SECONDS, obfuscate=query.include_obfuscation)
    return EventStream(events, {}, end=b"")


async def cancel_response(service: Service, request: HttpRequest) -> Response:
    """Stop a background response. Returns it, also if it had ended before."""
    entry = _find(service, request)
    if entry.run is not None:
        return json_response(await entry.run.cancel())
    if not entry.background:
        raise invalid("Only a response with background true can be cancelled.", "response_id", "not_in_background")
    return json_response(entry.current())


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
    query = _query(request, InputItemsQuery)
    items = entry.items()
    if query.order == "desc":
        items.reverse()
    return json_response(_encode(_page(items, query.after, query.limit)))


def _page(items: list[Item], after: str | None, limit: int) -> ItemPage:
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
    name: str = request.path_params["id"]
    entry = service.responses.get(tenant_of(service, request), name)
    if entry is None:
        why = "" if service.responses.enabled else " This server stores no responses."
        raise ApiError(
            404, f"Response with id {name[:128]!r} not found.{why}", param="response_id", code="response_not_found"
        )
    return entry


def _query(request: HttpRequest, kind: type[Query]) -> Query:
    """The parameters of the query that `kind` has; others are ignored. Raises `ApiError`."""
    given = {name: value for name, value in request.query_params.items() if name in kind.__struct_fields__}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`")
        found = given.get(name, "")[:64]
        raise invalid(f"{name}: {found!r} is not supported; {problem[0].lower()}{problem[1:]}.", name) from None
