"""Messages between the API process and the grammar process, in frames (`common.framing`).

The API process sends `ModelTokens` once and then one `Try` after the other. The grammar process replies `Tried` to
each.
"""

from __future__ import annotations

import msgspec


class ModelTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The model's tokens: the tokenizer's JSON, the number of logits, and the ids that end an answer."""

    tokenizer: str
    size: int
    ends: tuple[int, ...]


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """A grammar to compile."""

    grammar: str


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """How a trial went. `error` is for clients, without the field; None if the grammar can be used."""

    seconds: float
    error: str | None = None
