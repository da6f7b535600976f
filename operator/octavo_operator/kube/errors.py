"""Errors of calls to the API server, by the reaction that the caller should have."""

from __future__ import annotations

import json

# The longest Retry-After that is honoured, in seconds.
RETRY_AFTER_LIMIT = 60.0
_THROTTLED = 429
# For about ten seconds after a CRD is installed, the API server does not know its kind as an owner and rejects every
# object with such an owner.
_UNDISCOVERED = "cannot find RESTMapping"


class KubeError(Exception):
    """A call failed; the message is that of the server.

    `status` is 0 when there was no response; `retry_after` is the server's Retry-After in seconds, 0 without one.
    """

    def __init__(self, status: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after


class NotFoundError(KubeError):
    """The object does not exist."""


class ConflictError(KubeError):
    """The object already exists, or has changed since it was read."""


class RefusedError(KubeError):
    """The server rejected the request (invalid, forbidden, quota): a retry of the same request is useless."""


class TransientError(KubeError):
    """No response, throttled, or a server error: a later retry may succeed."""


class FencedError(TransientError):
    """A write that was not sent, because the Lease has expired and another replica may be the leader."""


def retry_after(error: Exception) -> float:
    """Seconds that the server asked to wait before a retry; 0 if it did not."""
    return error.retry_after if isinstance(error, KubeError) else 0.0


def from_response(status: int, body: bytes, what: str, header: str = "") -> KubeError:
    """The error for a response that is not 2xx. `what` names the call in the message; `header` is Retry-After."""
    try:
        answer = json.loads(body)
        message = str(answer.get("message") or answer)
    except (ValueError, AttributeError):
        message = body[:300].decode(errors="replace")
    text = f"{what}: {message} ({status})"
    if status == 404:
        return NotFoundError(status, text)
    if status == 409:
        return ConflictError(status, text)
    if status == 403 and _UNDISCOVERED in message:
        return TransientError(status, text)
    if status in (400, 401, 403, 405, 413, 415, 422):
        return RefusedError(status, text)
    return TransientError(status, text, _seconds(header, status))


def _seconds(header: str, status: int) -> float:
    """A Retry-After header in seconds, limited; a date counts as none, since no API server sends one."""
    seconds = float(header) if header.isascii() and header.isdigit() else 0.0
    return min(max(seconds, 1.0 if status == _THROTTLED else 0.0), RETRY_AFTER_LIMIT)
