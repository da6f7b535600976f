"""`GET /v1/models` and `GET /v1/models/{id}` in the forms of OpenAI and Anthropic. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from octavo_gateway.api.errors import ApiError
from octavo_gateway.discovery.endpoints import Deployment

PAGE = 20
"""Models on a page of Anthropic's list, unless the client names another number."""
MAX_PAGE = 1000


def model_list(deployments: Iterable[Deployment]) -> bytes:
    """OpenAI's list: every served name and alias of these deployments."""
    return msgspec.json.encode({"object": "list", "data": [_openai(*one) for one in _named(deployments)]})


def model_object(name: str, deployment: Deployment) -> bytes:
    """One model in OpenAI's form."""
    return msgspec.json.encode(_openai(name, deployment))


def anthropic_list(deployments: Iterable[Deployment], query: Mapping[str, str]) -> bytes:
    """One page of Anthropic's list. Raises `ApiError` 400 for a malformed `limit`, `after_id` or `before_id`."""
    models = [_anthropic(*one) for one in _named(deployments)]
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


def anthropic_model(name: str, deployment: Deployment) -> bytes:
    """One model in Anthropic's form."""
    return msgspec.json.encode(_anthropic(name, deployment))


def _named(deployments: Iterable[Deployment]) -> list[tuple[str, Deployment]]:
    return [(name, deployment) for deployment in deployments for name in deployment.models]


def _openai(name: str, deployment: Deployment) -> dict[str, object]:
    return {"id": name, "object": "model", "created": deployment.created, "owned_by": "octavo"}


def _anthropic(name: str, deployment: Deployment) -> dict[str, str]:
    created = datetime.fromtimestamp(deployment.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": name, "display_name": name, "created_at": created}


def _limit(query: Mapping[str, str]) -> int:
    given = query.get("limit", str(PAGE))
    if re.fullmatch(r"[0-9]{1,4}", given, re.ASCII) is None or not 1 <= int(given) <= MAX_PAGE:
        raise ApiError(400, f"limit: {given[:64]!r} is not a whole number from 1 to {MAX_PAGE}", param="limit")
    return int(given)


def _position(ids: list[str], query: Mapping[str, str], name: str) -> int:
    if query[name] not in ids:
        raise ApiError(400, f"{name}: there is no model {query[name][:128]!r}; take an id of this list", param=name)
    return ids.index(query[name])
