"""`GET /v1/models` and `GET /v1/models/{id}` in the forms of OpenAI and Anthropic. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from octavo_gateway.api.errors import ApiError

PAGE = 20
"""Models on a page of Anthropic's list, unless the client names another number."""
MAX_PAGE = 1000


class ModelEntry(NamedTuple):
    """One name of a model. `created`: Unix seconds. `root`: the name of the weights that answer.

    `parent`: the model that an adapter changes, None for a model with its own weights.
    """

    name: str
    created: int
    root: str
    parent: str | None = None


def model_list(entries: Iterable[ModelEntry]) -> bytes:
    """OpenAI's list."""
    return msgspec.json.encode({"object": "list", "data": [_openai(entry) for entry in entries]})


def model_object(entry: ModelEntry) -> bytes:
    """One model in OpenAI's form."""
    return msgspec.json.encode(_openai(entry))


def anthropic_list(entries: Iterable[ModelEntry], query: Mapping[str, str]) -> bytes:
    """One page of Anthropic's list. Raises `ApiError` 400 for a malformed `limit`, `after_id` or `before_id`."""
    models = [_anthropic(entry) for entry in entries]
    ids = [model["id"] for model in models]
    limit = _limit(query)
    first = _position(ids, query, "after_id") + 1 if "after_id" in query else 0
    last = _position(ids, query, "before_id") if "before_id" in query else len(models)
    between = models[first:last]
    # A page before a model ends there; all others begin where the page before ended.
    page = between[-limit:] if "before_id" in query and "after_id" not in query else between[:limit]
    ends = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    more = len(between) > limit
    return msgspec.json.encode({"data": page, "has_more": more, "first_id": ends[0], "last_id": ends[1]})


def anthropic_model(entry: ModelEntry) -> bytes:
    """One model in Anthropic's form."""
    return msgspec.json.encode(_anthropic(entry))


def entries_of(names: Sequence[str], adapter: str, created: int) -> list[ModelEntry]:
    """The entries of a model with these names, first its served name; or of its adapter, if that is not empty."""
    if adapter:
        return [ModelEntry(adapter, created, adapter, names[0])]
    return [ModelEntry(name, created, names[0]) for name in names]


def _openai(entry: ModelEntry) -> dict[str, object]:
    return {
        "id": entry.name,
        "object": "model",
        "created": entry.created,
        "owned_by": "octavo",
        "root": entry.root,
        "parent": entry.parent,
    }


def _anthropic(entry: ModelEntry) -> dict[str, str]:
    created = datetime.fromtimestamp(entry.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": entry.name, "display_name": entry.name, "created_at": created}


def _limit(query: Mapping[str, str]) -> int:
    given = query.get("limit", str(PAGE))
    if re.fullmatch(r"[0-9]{1,4}", given, re.ASCII) is None or not 1 <= int(given) <= MAX_PAGE:
        raise ApiError(400, f"limit: {given[:64]!r} is not a whole number from 1 to {MAX_PAGE}", param="limit")
    return int(given)


def _position(ids: list[str], query: Mapping[str, str], name: str) -> int:
    if query[name] not in ids:
        raise ApiError(400, f"{name}: there is no model {query[name][:128]!r}; take an id of this list", param=name)
    return ids.index(query[name])
