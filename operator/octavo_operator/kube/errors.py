"""What can go wrong with a call to the API server, by what the caller can do about it."""

from __future__ import annotations

import json


class KubeError(Exception):
    """A call failed; the message is the server's. `status` is 0 when there was no answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class NotFoundError(KubeError):
    """There is no such object."""


class ConflictError(KubeError):
    """The object exists already, or has changed since it was read."""


class RefusedError(KubeError):
    """The server understood and says no (invalid, forbidden, quota): trying again the same changes nothing."""


class TransientError(KubeError):
    """No answer, throttled or a server error: trying later can help."""


def from_response(status: int, body: bytes, what: str) -> KubeError:
    """The error of an answer that is not 2xx. `what` is the call, for the message."""
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
    return TransientError(status, text)
