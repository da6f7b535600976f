"""The format of errors: that of the API whose client sent the request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo_inference.server.anthropic import errors as anthropic
from octavo_inference.server.errors import ApiError
from octavo_inference.server.sse import event
from octavo_protocol.names import HEADER_REQUEST_ID


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """`body` and `event` encode an error for a request id, as a response and within a stream.

    `id_headers` are the response headers with the request id, in lower case.
    """

    body: Callable[[ApiError, str], bytes]
    event: Callable[[ApiError, str], bytes]
    id_headers: tuple[bytes, ...]


_OURS = HEADER_REQUEST_ID.lower().encode()
OPENAI_FORMAT = ErrorFormat(lambda error, _: error.body, lambda error, _: event(error.body), (_OURS,))
ANTHROPIC_FORMAT = ErrorFormat(
    anthropic.error_body, anthropic.error_event, (_OURS, anthropic.HEADER_REQUEST_ID.encode())
)


def error_format(path: str, headers: Mapping[str, str]) -> ErrorFormat:
    """The format for a request. `headers` have lower-case names."""
    return ANTHROPIC_FORMAT if anthropic.is_anthropic(path, headers) else OPENAI_FORMAT
