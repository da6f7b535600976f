"""Fields that are accepted without effect, the same on every endpoint."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from octavo_inference.server.prompts import SchedulingFields

Label = Annotated[str, Meta(max_length=512)]


class AcceptedFields(SchedulingFields, forbid_unknown_fields=True, kw_only=True):
    """Fields that clients send and that change no answer. Values that ask for something else are refused.

    Gateways route requests with the same `prompt_cache_key` to the same pod; the server itself does not read it.
    """

    user: Label | None = None
    metadata: Annotated[dict[Label, Label], Meta(max_length=16)] | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory"] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
