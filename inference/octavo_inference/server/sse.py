"""Server-sent events by template: most events differ from the previous one in their text only."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

# A control character, as JSON encodes it, that occurs in no other string of an answer.
MARK = "\x01"
_MARK_JSON = b'"\\u0001"'
_text = msgspec.json.Encoder().encode


def event(document: bytes, name: str | None = None) -> bytes:
    """Encode one event with a JSON document; with `name`, as an event of that name."""
    line = b"" if name is None else b"event: " + name.encode() + b"\n"
    return line + b"data: " + document + b"\n\n"


def template(document: bytes, name: str | None = None) -> Callable[[str], bytes]:
    """A function from a text to its event. The JSON document has MARK in the place of the text."""
    head, _, tail = event(document, name).partition(_MARK_JSON)
    return lambda text: head + _text(text) + tail
