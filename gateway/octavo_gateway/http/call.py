"""The gateway's view of an admitted request."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from octavo_gateway.access.control import RequestGrant
from octavo_gateway.openai import ApiError
from octavo_gateway.queueing.hold_queue import RequestAttributes
from octavo_gateway.routing.prompt_features import Prompt
from octavo_protocol.names import HEADER_TIMEOUT


@dataclass(frozen=True, slots=True)
class Call:
    """An admitted request. `path` is the route's own, not the client's spelling.

    `timeout`: seconds after `started` within which the client needs the answer.
    """

    path: str
    body: bytes
    stream: bool
    prompt: Prompt
    request_id: str
    started: float
    grant: RequestGrant
    attributes: RequestAttributes
    timeout: float | None = None

    def left(self) -> float:
        """Seconds until the request's deadline; infinite without one."""
        return float("inf") if self.timeout is None else self.started + self.timeout - perf_counter()

    def expired(self) -> ApiError:
        """The error of a request that was not begun in time."""
        return ApiError(
            504,
            f"The request was not begun within its {self.timeout:g} s.",
            code="deadline_exceeded",
            param=HEADER_TIMEOUT,
        )
