"""Admits requests to the hold queue, and gives them places on replicas in the queue's order. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from octavo_gateway.queueing.hold_queue import HoldQueue, QueuedRequest

T = TypeVar("T")

Search = Callable[[QueuedRequest[T], float | None], tuple[T | None, float]]
"""Searches for a place for a request; returns the place, and the most tokens that any replica accepts.

The number passed in is the result of the last search for the same request, which found all replicas full; None if
there was none.
"""


@dataclass(frozen=True, slots=True)
class _Unplaced(Generic[T]):
    """A held request for which all replicas were full, and the most tokens that any of them accepts."""

    request: QueuedRequest[T]
    largest: float


@dataclass(slots=True, eq=False)
class Dispatcher(Generic[T]):
    """A hold queue and the futures of the requests that wait in it."""

    queue: HoldQueue[T]
    _unplaced: _Unplaced[T] | None = None

    def offer(self, request: QueuedRequest[T], refuse: Callable[[bool], Exception]) -> None:
        """Add a request to the queue; it may displace others.

        `refuse` makes the error of a request without a place in the queue. Its argument is True if the queue is full,
        False if the request's tenant has its share of it. The error of this request is raised.
        """
        for other in self.queue.displaced(request):
            self.queue.remove(other)
            other.granted.set_exception(refuse(other.priority < request.priority))
        if not self.queue.offer(request):
            raise refuse(not self.queue.crowding(request.tenant))

    def dispatch(self, search: Search[T], parks: Callable[[QueuedRequest[T]], bool], now: float) -> None:
        """Give places to requests until one finds none, or the queue is empty.

        `parks`: True if a request without a place waits for its adapter and not for room; it lets the others pass.
        """
        while (request := self.queue.head(now)) is not None:
            before = self._unplaced
            known = before.largest if before is not None and before.request is request else None
            place, largest = search(request, known)
            if place is None and parks(request):
                self.queue.park(request)
                continue
            if place is None:
                self._unplaced = _Unplaced(request, largest)
                return
            self.grant(request, place)
        self._unplaced = None

    def grant(self, request: QueuedRequest[T], place: T) -> None:
        """Give a place to a waiting request, whatever its position in the queue."""
        self.queue.remove(request)
        request.granted.set_result(place)

    def cancel(self, request: QueuedRequest[T]) -> T | None:
        """Remove a request; returns its place if one was granted in the same moment."""
        self.queue.remove(request)
        granted = request.granted
        if granted.done() and not granted.cancelled() and granted.exception() is None:
            return granted.result()
        granted.cancel()
        return None

    def refuse(self, request: QueuedRequest[T], error: Exception) -> None:
        """Answer a waiting request with an error."""
        self.queue.remove(request)
        request.granted.set_exception(error)

    def fail(self, error: Exception) -> None:
        """Answer all waiting requests with an error."""
        for request in self.queue:
            self.refuse(request, error)
