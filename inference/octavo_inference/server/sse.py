"""Server-sent events, the cheap way: most of them differ from the one before in their text only."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

# A control character that no other string of an answer holds, as JSON writes it.
MARK = "\x01"
_MARK_JSON = b'"\\u0001"'
_text = msgspec.json.Encoder().encode


def event(document: bytes) -> bytes:
    """One event with a JSON document."""
    return b"data: " + document + b"\n\n"


def template(document: bytes) -> Callable[[str], bytes]:
    """A function that makes the event of a text from a JSON document with MARK in the text's place."""
    head, _, tail = event(document).partition(_MARK_JSON)
    return lambda text: head + _text(text) + tail
