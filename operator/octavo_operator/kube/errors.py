"""What can go wrong with a call to the API server, by what the caller can do about it."""

from __future__ import annotations

import json

# No server may send us to sleep for longer.
RETRY_AFTER_LIMIT = 60.0
_THROTTLED = 429


class KubeError(Exception):
    """A call failed; the message is the server's.

    `status` is 0 when there was no answer; `retry_after` is how long the server asks to be left alone, in seconds.
    """

    def __init__(self, status: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after


class NotFoundError(KubeError):
    """There is no such object."""


class ConflictError(KubeError):
    """The object exists already, or has changed since it was read."""


class RefusedError(KubeError):
    """The server understood and says no (invalid, forbidden, quota): trying again the same changes nothing."""


class TransientError(KubeError):
    """No answer, throttled or a server error: trying later can help."""


class FencedError(TransientError):
    """A write that was not sent: the Lease has run out, and another replica may be reconciling."""


def retry_after(error: Exception) -> float:
    """Seconds before another attempt, as the server asked for."""
    return error.retry_after if isinstance(error, KubeError) else 0.0


def from_response(status: int, body: bytes, what: str, header: str = "") -> KubeError:
    """The error of an answer that is not 2xx. `what` is the call, for the message; `header` is its Retry-After."""
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
    if status in (400, 401, 403, 405, 413, 415, 422):
        return RefusedError(status, text)
    return TransientError(status, text, _seconds(header, status))


def _seconds(header: str, status: int) -> float:
    """Of a Retry-After in seconds; a date, which no API server sends, counts as none."""
    seconds = float(header) if header.isascii() and header.isdigit() else 0.0
    return min(max(seconds, 1.0 if status == _THROTTLED else 0.0), RETRY_AFTER_LIMIT)
