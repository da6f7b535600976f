"""Request ids ordered by deadline."""

from __future__ import annotations

import heapq
import math


class Deadlines:
    """A heap of request ids. Finished requests leave stale entries, dropped once they are the majority."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str]] = []
        self._entries: dict[str, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request_id: str, time: float) -> None:
        """Add the deadline of a request."""
        self._count += 1
        self._entries[request_id] = self._count
        heapq.heappush(self._heap, (time, self._count, request_id))
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._entries):
            self._heap = [entry for entry in self._heap if self._entries.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def remove(self, request_id: str) -> None:
        """Drop a finished request, with or without a deadline."""
        self._entries.pop(request_id, None)

    def next(self) -> float:
        """A time before which no deadline passes; infinite without deadlines."""
        return self._heap[0][0] if self._heap else math.inf

    def due(self, now: float) -> list[str]:
        """Remove and return the requests whose deadline has passed."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            _, number, request_id = heapq.heappop(self._heap)
            if self._entries.get(request_id) == number:
                del self._entries[request_id]
                due.append(request_id)
        return due
