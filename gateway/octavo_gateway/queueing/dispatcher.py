"""Requests that wait for a place: taken in, given one in the queue's order, turned away. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from octavo_gateway.queueing.hold_queue import HoldQueue, QueuedRequest

T = TypeVar("T")

Search = Callable[[QueuedRequest[T], float | None], tuple[T | None, float]]
"""Looks for a place for a request: the place, and the most tokens that any replica takes.

The number given is what the last search for the same request found, when all replicas were full; None without one.
"""


@dataclass(frozen=True, slots=True)
class _Unplaced(Generic[T]):
    """A held request for which all replicas were found full, and the most tokens that any of them takes."""

    request: QueuedRequest[T]
    largest: float


@dataclass(slots=True, eq=False)
class Dispatcher(Generic[T]):
    """A hold queue and the futures of the requests that wait in it."""

    queue: HoldQueue[T]
    _unplaced: _Unplaced[T] | None = None

    def offer(self, request: QueuedRequest[T], refuse: Callable[[bool], Exception]) -> None:
        """Take a request in; others may have to give way to it.

        `refuse` makes the error of one that finds no place: True where the queue is full, False where it is full of
        requests of the same tenant. Raises it for this one.
        """
        for other in self.queue.displaced(request):
            self.queue.remove(other)
            other.granted.set_exception(refuse(other.priority < request.priority))
        if not self.queue.offer(request):
            raise refuse(not self.queue.crowding(request.tenant))

    def dispatch(self, search: Search[T], now: float) -> None:
        """Give places until a request finds none, or the queue is empty."""
        while (request := self.queue.head(now)) is not None:
            before = self._unplaced
            known = before.largest if before is not None and before.request is request else None
            place, largest = search(request, known)
            if place is None:
                self._unplaced = _Unplaced(request, largest)
                return
            self.queue.remove(request)
            request.granted.set_result(place)
        self._unplaced = None

    def cancel(self, request: QueuedRequest[T]) -> T | None:
        """Let a request go; the place that it was given in the same moment, if any."""
        self.queue.remove(request)
        granted = request.granted
        if granted.done() and not granted.cancelled() and granted.exception() is None:
            return granted.result()
        granted.cancel()
        return None

    def fail(self, error: Exception) -> None:
        """Answer all that wait with an error."""
        for request in self.queue:
            self.queue.remove(request)
            request.granted.set_exception(error)
