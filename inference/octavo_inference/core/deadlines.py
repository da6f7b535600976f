"""Requests in the order in which their time is up."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from octavo_inference.core.request import Request


class Deadlines:
    """A heap; what has finished in the meantime is skipped. `alive` says whether a request still waits or runs."""

    def __init__(self, alive: Callable[[Request], bool]) -> None:
        self._alive = alive
        self._heap: list[tuple[float, int, Request]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request, now: float) -> None:
        """Remember when a request that is handed in now has to end, if it says so."""
        if request.timeout is None:
            return
        if self._count % 256 == 255:
            # Most requests finish long before their deadline, which may be a day off.
            self._heap = [entry for entry in self._heap if self._alive(entry[2])]
            heapq.heapify(self._heap)
        self._count += 1
        heapq.heappush(self._heap, (now + request.timeout, self._count, request))

    def due(self, now: float) -> list[Request]:
        """Take out the live requests whose time is up."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            request = heapq.heappop(self._heap)[2]
            if self._alive(request):
                due.append(request)
        return due
