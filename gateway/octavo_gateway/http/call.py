"""The gateway's view of an admitted request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from time import perf_counter

from octavo_gateway.access.control import RequestGrant
from octavo_gateway.api.errors import ApiError
from octavo_gateway.pool.replica import Replica
from octavo_gateway.pool.stored_responses import StoredAt
from octavo_gateway.queueing.hold_queue import RequestAttributes
from octavo_gateway.routing.prompt_features import Prompt
from octavo_protocol.names import HEADER_TIMEOUT
from octavo_protocol.routes import Route


@dataclass(frozen=True, slots=True)
class Call:
    """An admitted request. `path` is the route's own, not the client's spelling, and includes the query.

    `timeout`: seconds after `started` within which the client needs the answer. `model`: the label of its model in
    metrics. `stored`: the place of the stored response to which the request refers. `learn` is called with the id of a
    response and the replica that stores it.
    """

    route: Route
    path: str
    body: bytes
    stream: bool
    prompt: Prompt
    request_id: str
    started: float
    grant: RequestGrant
    attributes: RequestAttributes
    timeout: float | None = None
    _: KW_ONLY
    model: str
    stored: StoredAt | None = None
    learn: Callable[[str, Replica], object] | None = None

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
