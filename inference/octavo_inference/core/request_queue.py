"""The waiting queue: who is next.

1. **Priority with aging.** A sequence's level is its request's priority, and one more for every `AGING_SECONDS` since
   it arrived: whatever else arrives, it comes to be the highest. Sequences of one priority are a class; a class stands
   where its oldest member stands, and of equal classes the one with the older member goes first.
2. **Tenants in turn.** Within a class it is the turn of the tenant that has had least (`fairness`).
3. **Order of arrival** within a tenant. A preempted sequence comes back to its old place.

Every operation takes O(log n) for n waiting sequences, and O(classes) to compare these; there are rarely more than two.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator

from octavo_inference.core.sequence import Sequence
from octavo_inference.core.virtual_token_counter import TenantCounter

AGING_SECONDS = 10.0


def level(sequence: Sequence, now: float) -> int:
    """Priority plus what it gained by waiting."""
    return sequence.request.priority + int(max(0.0, now - sequence.arrived) // AGING_SECONDS)


class WaitingQueue:
    """`tokens` and `uncached` are sums over its sequences, kept as they change."""

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        # In order of entering, so that the first is the one that entered longest ago.
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
        self._classes.setdefault(sequence.request.priority, _Class()).add(sequence)
        self._members[sequence] = (sequence.total, uncached)
        self.tokens += sequence.total
        self.uncached += uncached

    def peek(self, now: float) -> Sequence | None:
        """The next to run."""
        best: tuple[int, int] | None = None
        turn = None
        for members in self._classes.values():
            oldest = members.oldest()
            standing = level(oldest, now), -oldest.arrival
            if best is None or standing > best:
                best, turn = standing, members
        return None if turn is None else turn.next()

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is in the queue."""
        total, uncached = self._members.pop(sequence)
        self.tokens -= total
        self.uncached -= uncached
        priority = sequence.request.priority
        if self._classes[priority].remove(sequence):
            del self._classes[priority]

    def oldest(self) -> float | None:
        """Time the sequence entered that entered longest ago, None when empty."""
        return next(iter(self._members)).enqueued if self._members else None


class _Class:
    """Sequences of one priority; never empty, except while it is made."""

    __slots__ = ("_all", "_lines", "_turns")

    def __init__(self) -> None:
        self._all = _Line()
        self._lines: dict[TenantCounter, _Line] = {}
        # (counter, number, account) of those who have a line. A counter only grows: an entry that is behind is put
        # right when it comes to the top.
        self._turns: list[tuple[int, int, TenantCounter]] = []

    def add(self, sequence: Sequence) -> None:
        account = sequence.account
        self._all.add(sequence)
        line = self._lines.get(account)
        if line is None:
            line = self._lines[account] = _Line()
            heapq.heappush(self._turns, (account.served, account.number, account))
        line.add(sequence)

    def remove(self, sequence: Sequence) -> bool:
        """Whether nobody is left."""
        self._lines[sequence.account].remove(sequence)
        self._all.remove(sequence)
        return not len(self._all)

    def oldest(self) -> Sequence:
        return self._all.first()

    def next(self) -> Sequence:
        while True:
            served, number, account = self._turns[0]
            line = self._lines[account]
            if not len(line):
                heapq.heappop(self._turns)
                del self._lines[account]
            elif served != account.served:
                heapq.heapreplace(self._turns, (account.served, number, account))
            else:
                return line.first()


class _Line:
    """Sequences in order of arrival: a heap of their numbers with lazy removal."""

    __slots__ = ("_heap", "_members")

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._members: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._members)

    def add(self, sequence: Sequence) -> None:
        self._members[sequence.arrival] = sequence
        heapq.heappush(self._heap, sequence.arrival)

    def remove(self, sequence: Sequence) -> None:
        del self._members[sequence.arrival]
        # Removed numbers stay in the heap until they surface, unless they come to outnumber the others.
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._members):
            self._heap = sorted(self._members)

    def first(self) -> Sequence:
        while self._heap[0] not in self._members:
            heapq.heappop(self._heap)
        return self._members[self._heap[0]]
