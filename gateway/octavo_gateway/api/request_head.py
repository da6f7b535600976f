"""Decodes the fields of a request body that the gateway reads, for every route. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from octavo_gateway.api.errors import ApiError
from octavo_protocol.response_id import ITEM_KINDS, response_of_item
from octavo_protocol.routes import ModelIn, Route, Work

# Upper bound of a request's output tokens, larger than any pool.
MOST_OUTPUT = 2**53
# A longer `prompt_cache_key` counts as none.
MAX_CACHE_KEY = 256
_NOTHING = msgspec.Raw()
# One of them is in every input that refers to an item of a response.
_ITEM_MARKS = tuple(f'"{kind}_'.encode() for kind in ITEM_KINDS)


class RequestHead(msgspec.Struct, frozen=True):
    """The fields of a request body that the gateway reads; each route has some of them. `model` is "" if missing."""

    model: str = ""
    stream: bool | None = None
    # Any type is accepted: the replica validates these fields.
    priority: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    best_of: Any = None
    prompt_cache_key: Any = None
    previous_response_id: Any = None
    background: Any = None
    cache_salt: msgspec.Raw = _NOTHING
    tools: msgspec.Raw = _NOTHING
    functions: msgspec.Raw = _NOTHING
    messages: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING
    system: msgspec.Raw = _NOTHING
    instructions: msgspec.Raw = _NOTHING
    input: msgspec.Raw = _NOTHING
    query: msgspec.Raw = _NOTHING
    documents: msgspec.Raw = _NOTHING
    text_1: msgspec.Raw = _NOTHING
    text_2: msgspec.Raw = _NOTHING

    def text(self, fields: Iterable[str]) -> bytes:
        """The prompt as JSON without its end, so that the text of a conversation's next turn begins with it.

        `fields`: names of the fields with prompt text, in order. null counts as empty.
        """
        found = [data for name in fields if (data := bytes(getattr(self, name))) not in {b"", b"null"}]
        return b"".join([*found[:-1], found[-1][:-1].rstrip()]) if found else b""

    def cache_key(self) -> bytes:
        """The client's `prompt_cache_key`; empty without a usable one."""
        given = self.prompt_cache_key
        return given.encode() if isinstance(given, str) and 0 < len(given) <= MAX_CACHE_KEY else b""

    def earlier_response(self) -> object:
        """The id of the response that this request continues; None if it continues none.

        It is named by `previous_response_id`, or by the first `item_reference` of `input` to an item of a response.
        """
        if self.previous_response_id is not None or not any(mark in bytes(self.input) for mark in _ITEM_MARKS):
            return self.previous_response_id
        try:
            items = _items.decode(self.input)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None  # the replica refuses it
        found = (response_of_item(item.id) for item in items if item.is_reference and isinstance(item.id, str))
        return next((response for response in found if response is not None), None)


class _Item(msgspec.Struct, frozen=True):
    """An item of `input`: a message, or a reference to one with its id and nothing else."""

    id: Any = None
    type: Any = None
    role: msgspec.Raw = _NOTHING
    content: msgspec.Raw = _NOTHING

    @property
    def is_reference(self) -> bool:
        alone = not bytes(self.role) and not bytes(self.content)
        return bool(self.type == "item_reference" or (self.type is None and alone))


NO_BODY = RequestHead()
_items = msgspec.json.Decoder(list[_Item])
_decoder = msgspec.json.Decoder(RequestHead)


def read_head(body: bytes, route: Route) -> RequestHead:
    """Decode the fields of a request body. Raises `ApiError` 400, which names a malformed field."""
    wanted = "a JSON object with a string `model`" if route.model is ModelIn.BODY else "a JSON object"
    try:
        head = _decoder.decode(body)
    except msgspec.ValidationError as error:
        message = str(error)
        field = "stream" if "$.stream" in message else "model"
        found = message.partition(" - at ")[0]
        raise ApiError(400, f"{found}; the body must be {wanted}", param=field) from None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ApiError(400, f"the body is not valid JSON; send {wanted}") from None
    if route.model is ModelIn.BODY and not head.model:
        raise ApiError(400, f"`model` is missing or empty; the body must be {wanted}", param="model")
    return head


def most_output(head: RequestHead, work: Work) -> float | None:
    """Upper bound of the answer's tokens, None if the request sets none."""
    if work is not Work.GENERATE:
        return 0.0
    bounds = (head.max_tokens, head.max_completion_tokens, head.max_output_tokens)
    named = [most for most in bounds if type(most) is int and most >= 0]
    answers = max([count for count in (head.n, head.best_of) if type(count) is int and count > 0], default=1)
    # JSON's integers are unbounded, floats are not.
    return float(min(MOST_OUTPUT, min(named) * answers)) if named else None
