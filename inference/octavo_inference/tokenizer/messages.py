"""Messages as chat templates take them, from messages as clients of the OpenAI API write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo_inference.common.errors import RequestError


def plain_messages(messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """The messages with the role system for developer, and their text parts joined.

    Raises `RequestError` for one without a role, and for a part that is not text.
    """
    return [_plain(message, f"messages[{number}]") for number, message in enumerate(messages)]


def _plain(message: Mapping[str, object], place: str) -> Mapping[str, object]:
    role = message.get("role")
    if not isinstance(role, str):
        raise RequestError(f"{place}: it has no role; give system, user or assistant", place)
    content = message.get("content")
    return {**message, "role": "system" if role == "developer" else role, "content": _text(content, f"{place}.content")}


def _text(content: object, place: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(f"{place}: {content!r} is neither a text nor a list of text parts", place)
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(f"{place}: only parts of the type text are supported", place)
    return "".join(map(str, texts))
