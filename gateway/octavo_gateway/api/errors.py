"""Errors of the gateway, and their form in each API: OpenAI's object with four keys, or Anthropic's."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import ceil

import msgspec

from octavo_protocol.routes import Surface, UsageForm

MAX_RETRY_AFTER = 120
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
# https://docs.anthropic.com/en/api/errors
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """An error response. `retry_after` in seconds becomes an integer header of 1 to 120.

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
        """OpenAI's error object as JSON, all four keys present."""
        return msgspec.json.encode(
            {"error": {"message": self.message, "type": self._type(), "param": self.param, "code": self.code}}
        )

    def anthropic_body(self, request_id: str) -> bytes:
        """Anthropic's error object as JSON."""
        fallback = "invalid_request_error" if self.status < 500 else "api_error"
        kind = _ANTHROPIC_TYPES.get(self.status, fallback)
        return msgspec.json.encode(
            {"type": "error", "error": {"type": kind, "message": self.message}, "request_id": request_id}
        )

    def responses_event(self, sequence: int) -> bytes:
        """The error as the data of an event in a stream of the Responses API. `sequence`: number of the event."""
        code = self.code or self._type()
        return msgspec.json.encode(
            {"type": "error", "code": code, "message": self.message, "param": self.param, "sequence_number": sequence}
        )

    def _type(self) -> str:
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")


class ErrorForm(Enum):
    """The form of errors. A stream of the Responses API has its own; its errors before a stream are OpenAI's."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"

    def body(self, error: ApiError, request_id: str) -> bytes:
        """The body of an error response, JSON."""
        return error.anthropic_body(request_id) if self is ErrorForm.ANTHROPIC else error.body()

    def event(self, error: ApiError, request_id: str, sequence: int = 0) -> bytes:
        """A whole event with the error. `sequence`: number of the event in a stream of the Responses API."""
        if self is ErrorForm.RESPONSES:
            return b"event: error\ndata: " + error.responses_event(sequence) + b"\n\n"
        prefix = b"event: error\n" if self is ErrorForm.ANTHROPIC else b""
        return prefix + b"data: " + self.body(error, request_id) + b"\n\n"

    def refusal_event(self, status: int, body: bytes) -> bytes:
        """A whole event with the body of a replica's error answer."""
        if self is ErrorForm.RESPONSES:
            return self.event(_parsed(status, body), "")
        prefix = b"event: error\n" if self is ErrorForm.ANTHROPIC else b""
        return prefix + b"data: " + body.replace(b"\n", b" ") + b"\n\n"

    def headers(self, request_id: str) -> dict[str, str]:
        """The form's own headers: Anthropic's clients read the request id from `request-id`."""
        return {"request-id": request_id} if self is ErrorForm.ANTHROPIC else {}


class _ErrorObject(msgspec.Struct):
    message: str = "The replica refused the request."
    code: str | None = None
    param: str | None = None


class _ErrorAnswer(msgspec.Struct):
    error: _ErrorObject


def _parsed(status: int, body: bytes) -> ApiError:
    try:
        found = msgspec.json.decode(body, type=_ErrorAnswer).error
    except (msgspec.MsgspecError, ValueError, RecursionError):
        found = _ErrorObject()
    return ApiError(status, found.message, code=found.code, param=found.param)


def error_form(surface: Surface, usage: UsageForm = UsageForm.NONE) -> ErrorForm:
    """The form of errors on a surface, in the streams of a route with this form of usage."""
    if surface is Surface.ANTHROPIC:
        return ErrorForm.ANTHROPIC
    return ErrorForm.RESPONSES if usage is UsageForm.RESPONSES else ErrorForm.OPENAI


def unknown_model(model: str) -> ApiError:
    """Error 404 for an unknown model, or one that the key may not use; the error does not reveal which."""
    shown = model if len(model) <= 128 else model[:128] + "…"
    return ApiError(
        404,
        f"The model {shown!r} does not exist, or the key may not use it; GET /v1/models lists the models there are.",
        code="model_not_found",
        param="model",
    )
