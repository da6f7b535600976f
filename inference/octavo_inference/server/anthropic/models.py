"""GET /v1/models for clients of the Anthropic API."""

from __future__ import annotations

import datetime as dt
import re
from typing import Literal

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.server.errors import invalid, model_not_found
from octavo_inference.server.http import json_response
from octavo_inference.server.service import Service

DEFAULT_LIMIT = 20
MAX_LIMIT = 1000


class AnthropicModel(msgspec.Struct, frozen=True, tag_field="type", tag="model"):
    """A model that is served. `max_tokens` and `max_input_tokens` are the size of its context, null while it loads."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    max_tokens: int | None
    lifecycle: Literal["active"] = "active"


class ModelPage(msgspec.Struct, frozen=True):
    """GET /v1/models. `first_id` and `last_id` are null if the page is empty."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


async def list_models(service: Service, request: HttpRequest) -> Response:
    """List the names of the model and its adapters, a page at a time."""
    query = request.query_params
    names, has_more = page(
        service.model_names, query.get("after_id"), query.get("before_id"), _limit(query.get("limit"))
    )
    models = [_model(service, name) for name in names]
    found = ModelPage(models, has_more, names[0] if names else None, names[-1] if names else None)
    return json_response(msgspec.json.encode(found))


async def get_model(service: Service, request: HttpRequest) -> Response:
    """Get one model by name."""
    name = request.path_params["name"]
    if name not in service.model_names:
        raise model_not_found(name, service.names[0])
    return json_response(msgspec.json.encode(_model(service, name)))


def page(names: tuple[str, ...], after: str | None, before: str | None, limit: int) -> tuple[tuple[str, ...], bool]:
    """The names between two of them, at most `limit`, and whether there are more in that direction.

    Raises `ApiError` for a name that is not listed.
    """
    for field, name in (("after_id", after), ("before_id", before)):
        if name is not None and name not in names:
            raise invalid(f"{field}: {name[:128]!r} is not served here; {names[0]!r} is.", field)
    start = 0 if after is None else names.index(after) + 1
    end = len(names) if before is None else names.index(before)
    found = names[start:end]
    backwards = before is not None and after is None
    return (found[-limit:] if backwards else found[:limit]), len(found) > limit


def _limit(given: str | None) -> int:
    if given is None:
        return DEFAULT_LIMIT
    if re.fullmatch(r"[0-9]{1,4}", given) is None or not 1 <= int(given) <= MAX_LIMIT:
        raise invalid(f"limit: {given[:64]!r} is not a whole number from 1 to {MAX_LIMIT}.", "limit")
    return int(given)


def _model(service: Service, name: str) -> AnthropicModel:
    created = dt.datetime.fromtimestamp(int(service.start_time), dt.UTC).isoformat().replace("+00:00", "Z")
    limit = service.loaded.info.max_model_len if service.loaded else None
    return AnthropicModel(name, name, created, limit, limit)
