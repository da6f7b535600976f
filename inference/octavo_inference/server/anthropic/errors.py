"""Error objects of the Anthropic API, and which requests receive them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from octavo_inference.server.anthropic.responses import (
    THREAD_UNSUPPORTED,
    AnthropicError,
    AnthropicErrorDetail,
    ThreadUnsupported,
)
from octavo_inference.server.errors import ApiError
from octavo_inference.server.sse import event

HEADER_VERSION = "anthropic-version"
HEADER_REQUEST_ID = "request-id"
_MESSAGES = "/v1/messages"
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    # Anthropic's servers send 529, which no load balancer knows. 503 with Retry-After is retried by all clients.
    503: "overloaded_error",
    504: "timeout_error",
}


def is_anthropic(path: str, headers: Mapping[str, str]) -> bool:
    """True if the client expects Anthropic's format: by the endpoint, or by the header that its clients send.

    `headers` have lower-case names.
    """
    return path == _MESSAGES or path.startswith(f"{_MESSAGES}/") or HEADER_VERSION in headers


def error_body(error: ApiError, request_id: str) -> bytes:
    """The JSON error object."""
    message = error.message
    if error.code == "context_length_exceeded":
        # Clients match on these words.
        message = f"prompt is too long: {message}"
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    details = ThreadUnsupported() if error.code == THREAD_UNSUPPORTED else msgspec.UNSET
    return msgspec.json.encode(AnthropicError(AnthropicErrorDetail(kind, message, details), request_id))


def error_event(error: ApiError, request_id: str) -> bytes:
    """The last event of a stream that failed."""
    return event(error_body(error, request_id), "error")
