"""The waiting queue: by priority, then arrival; a preempted sequence comes back to its old place."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator

from octavo_inference.core.sequence import Sequence


class WaitingQueue:
    """Heap with lazy removal. `tokens` and `uncached` are sums over its sequences, kept as they change."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Sequence]] = []
        # In order of entering, so that the first is the one waiting longest.
        self._members: OrderedDict[Sequence, tuple[int, int]] = OrderedDict()
        self.tokens = 0
        self.uncached = 0

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._members

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._members)

    def push(self, sequence: Sequence, uncached: int) -> None:
        """Add a sequence of which `uncached` tokens probably have to be computed."""
        heapq.heappush(self._heap, (-sequence.request.priority, sequence.arrival, sequence))
        self._members[sequence] = (sequence.total, uncached)
        self.tokens += sequence.total
        self.uncached += uncached

    def peek(self) -> Sequence | None:
        """The next to run."""
        while self._heap and self._heap[0][2] not in self._members:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is in the queue."""
        total, uncached = self._members.pop(sequence)
        self.tokens -= total
        self.uncached -= uncached
        # Removed entries stay in the heap until they surface, unless they come to outnumber the others.
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._members):
            self._heap = [entry for entry in self._heap if entry[2] in self._members]
            heapq.heapify(self._heap)

    def oldest(self) -> float | None:
        """Time the longest-waiting sequence entered, None when empty."""
        return next(iter(self._members)).enqueued if self._members else None
