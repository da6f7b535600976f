"""Error objects for clients: always the same four keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from octavo_protocol.names import HEADER_DRAINING, HEADER_TIMEOUT

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "not_found_error",
    "conflict_error",
    "rate_limit_error",
    "server_error",
]
_TYPES: Final[dict[int, ErrorType]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    431: "invalid_request_error",
    499: "invalid_request_error",
    500: "server_error",
    503: "server_error",
    504: "server_error",
}
RETRY_AFTER_SECONDS = 2


class ErrorDetail(msgspec.Struct, frozen=True):
    """The reason of an error."""

    message: str
    """What is wrong, with the field, the value and the fix; for people."""
    type: ErrorType
    """Kind of the error."""
    param: str | None
    """Field or header at fault, null if there is none."""
    code: str | None
    """Reason for programs, such as `context_length_exceeded`."""


class ErrorObject(msgspec.Struct, frozen=True):
    """The body of every error: always the same four keys."""

    error: ErrorDetail


class ApiError(Exception):
    """An error response to a request. `param` names the field at fault; `code` is a machine-readable kind."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> bytes:
        """The JSON error object."""
        kind = _TYPES.get(self.status, "server_error")
        return msgspec.json.encode(ErrorObject(ErrorDetail(self.message, kind, self.param, self.code)))


def invalid(message: str, param: str | None, code: str | None = None) -> ApiError:
    """400: the request itself is invalid."""
    return ApiError(400, message, param=param, code=code)


def generates_nothing(name: str, task: str) -> ApiError:
    """400: a request for text to a model that embeds or scores."""
    kind, paths = (
        ("scores pairs of texts", "/v1/rerank and /v1/score")
        if task == "score"
        else ("gives embeddings", "/v1/embeddings, /v1/rerank and /v1/score")
    )
    return invalid(f"model: {name[:128]} {kind} and generates no text; use {paths}.", "model", "unsupported_model")


def gives_no_embeddings(name: str) -> ApiError:
    """400: a request for embeddings to a model that scores pairs."""
    return invalid(
        f"model: {name[:128]} scores pairs of texts and gives no embeddings; use /v1/rerank and /v1/score.",
        "model",
        "unsupported_model",
    )


def model_not_found(name: str, known: str) -> ApiError:
    """404: no model of this name."""
    return ApiError(
        404, f"The model {name[:128]!r} is not served here; {known!r} is.", param="model", code="model_not_found"
    )


def adapter_failed(name: str, failure: str) -> ApiError:
    """404: an adapter that cannot be used."""
    return ApiError(
        404, f"The adapter {name[:128]!r} cannot be used: {failure}.", param="model", code="adapter_unavailable"
    )


def context_overflow(prompt: int, answer: int, limit: int, param: str) -> ApiError:
    """400: prompt and answer exceed the model's context. Clients match on the code and on this wording."""
    fix = f"Please reduce the length of the {param} or the completion."
    if prompt >= limit:
        fix = f"The prompt is too long. Please reduce the length of the {param}."
    return invalid(
        f"This model's maximum context length is {limit} tokens. However, you requested {prompt + answer} tokens "
        f"({prompt} in the {param}, {answer} in the completion). {fix}",
        param,
        "context_length_exceeded",
    )


def head_too_large(limit: int, headers: int) -> ApiError:
    """431: request line and headers exceed their bounds."""
    return _closing(
        431,
        f"Request line and headers are too large: at most {limit} bytes and {headers} headers are accepted.",
        "headers_too_large",
    )


def head_too_slow(seconds: float) -> ApiError:
    """408: request line and headers did not arrive in time."""
    return _closing(408, f"Request line and headers did not arrive within {seconds:g} s.", "timeout")


def malformed() -> ApiError:
    """400: not an HTTP request."""
    return _closing(400, "The request is not well-formed HTTP/1.1.", "malformed_request")


def client_gone() -> ApiError:
    """499: the client closed the connection before its request was complete. Only the log shows it."""
    return _closing(499, "The client closed the connection before its request was complete.", "client_gone")


def not_ready() -> ApiError:
    """503: the model is still loading."""
    return _unavailable("The model is still loading; try again in a few seconds.", "not_ready")


def draining() -> ApiError:
    """503: the server is shutting down; another replica can answer."""
    error = _unavailable("This server is draining and takes no new requests; try again.", "draining")
    error.headers |= {HEADER_DRAINING: "1", "Connection": "close"}
    return error


def sleeping() -> ApiError:
    """503: the server has released the model until it is woken on its admin port."""
    return _unavailable("This server sleeps and takes no requests until it is woken; try again.", "sleeping")


def overloaded(waiting: int) -> ApiError:
    """503: the queue has reached its bound."""
    return _unavailable(f"The server is full: {waiting} sequences are waiting; try again shortly.", "overloaded")


def intake_full() -> ApiError:
    """503: bodies of other requests take all the memory that is set aside for them."""
    return _unavailable("The server is busy with the texts of other requests; try again shortly.", "overloaded")


def deadline_exceeded(message: str) -> ApiError:
    """504: the client's deadline passed before the first token."""
    return ApiError(504, f"The request was ended: {message}.", param=HEADER_TIMEOUT, code="deadline_exceeded")


def engine_failed(message: str) -> ApiError:
    """500: the engine could not finish the request."""
    return ApiError(500, message, code="engine_error")


def engine_gone(message: str) -> ApiError:
    """503: the engine has ended, or the server ends. Another replica, or this one after its restart, can answer."""
    return _unavailable(message, "engine_unavailable")


def internal(request_id: str) -> ApiError:
    """500 without any detail: details are in the log, under the request id."""
    return ApiError(
        500, f"Internal error; the server's log has details under request id {request_id}.", code="internal_error"
    )


def _closing(status: int, message: str, code: str) -> ApiError:
    return ApiError(status, message, code=code, headers={"Connection": "close"})


def _unavailable(message: str, code: str) -> ApiError:
    return ApiError(503, message, code=code, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
