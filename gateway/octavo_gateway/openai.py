"""The part of the OpenAI API that the gateway implements itself: error objects, request fields, the model list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

import msgspec

from octavo_gateway.discovery.endpoints import Deployment

MAX_RETRY_AFTER = 120
# Upper bound of a request's output tokens, larger than any pool.
MOST_OUTPUT = 2**53
_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An error response with an OpenAI error object. `retry_after` in seconds becomes an integer header of 1 to 120.

    `headers`: additional headers. `close`: close the connection, because further data on it cannot be trusted.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        self.close = close
        self.retry_after = None if retry_after is None else min(MAX_RETRY_AFTER, max(1, ceil(retry_after)))

    def body(self) -> bytes:
        """The error object as JSON, all four keys present."""
        fallback = "invalid_request_error" if self.status < 500 else "server_error"
        kind = _TYPES.get(self.status, fallback)
        return msgspec.json.encode(
            {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
        )


_NOTHING = msgspec.Raw()


class RequestHead(msgspec.Struct, frozen=True):
    """The fields of a request body that the gateway reads."""

    model: str
    stream: bool | None = None
    # Any type is accepted: the replica validates these fields.
    priority: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    n: Any = None
    messages: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING
    cache_salt: msgspec.Raw = _NOTHING

    def text(self, *, chat: bool) -> bytes:
        """The prompt as JSON without its end, so that the text of a conversation's next turn begins with it.

        It comes from the field that the route reads; null counts as empty.
        """
        found = bytes(self.messages if chat else self.prompt)
        return b"" if found == b"null" else found[:-1].rstrip()


_decoder = msgspec.json.Decoder(RequestHead)


def read_head(body: bytes) -> RequestHead:
    """Decode the fields of a request body. Raises `ApiError` 400, which names a malformed field."""
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as error:
        message = str(error)
        field = "stream" if "$.stream" in message else "model"
        found = message.partition(" - at ")[0]
        raise ApiError(400, f"{found}; the body must be a JSON object with a string `model`", param=field) from None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ApiError(400, "the body is not valid JSON; send a JSON object with a string `model`") from None


def most_output(head: RequestHead) -> float | None:
    """Upper bound of the answer's tokens, None if the request sets none."""
    named = [most for most in (head.max_tokens, head.max_completion_tokens) if type(most) is int and most > 0]
    choices = head.n if type(head.n) is int and head.n > 0 else 1
    # JSON's integers are unbounded, floats are not.
    return float(min(MOST_OUTPUT, min(named) * choices)) if named else None


def unknown_model(model: str) -> ApiError:
    """Error 404 for an unknown model, or one that the key may not use; the error does not reveal which."""
    shown = model if len(model) <= 128 else model[:128] + "…"
    return ApiError(
        404,
        f"The model {shown!r} does not exist, or the key may not use it; GET /v1/models lists the models there are.",
        code="model_not_found",
        param="model",
    )


def model_list(deployments: Iterable[Deployment]) -> bytes:
    """`GET /v1/models`: every served name and alias of these deployments."""
    data = [_model(name, deployment) for deployment in deployments for name in deployment.models]
    return msgspec.json.encode({"object": "list", "data": data})


def model_object(name: str, deployment: Deployment) -> bytes:
    """`GET /v1/models/{id}`."""
    return msgspec.json.encode(_model(name, deployment))


def _model(name: str, deployment: Deployment) -> dict[str, object]:
    return {"id": name, "object": "model", "created": deployment.created, "owned_by": "octavo"}
