"""A priority queue with aging and fairness between tenants, for requests held by gateways or waiting in the engine.

1. **Priority with aging.** An entry's level is its priority, plus one for every `AGING_SECONDS` that it waits.
   Entries of one priority are a class. A class has the level of its oldest entry; of equal classes the one with the
   older entry goes first. So no entry starves.
2. **Fairness between tenants.** Within a class the tenant with the lowest virtual token counter is next.
3. **Order of arrival** within a tenant, by `Place.order`: an entry that returns gets its former place.

Every operation takes O(log n) for n entries, plus O(classes). Pure: times are passed in.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from octavo_common.virtual_token_counter import VirtualTokenCounter

T = TypeVar("T")

AGING_SECONDS = 10.0

# A heap with more stale entries than valid ones is rebuilt, from this size on.
_SMALL = 64


def level(priority: int, waited: float) -> int:
    """The priority plus the aging of `waited` seconds."""
    return priority + int(max(0.0, waited) // AGING_SECONDS)


class Place(NamedTuple):
    """The position of an entry: `arrived` in seconds; `order` is unique in the queue and increases with `arrived`."""

    tenant: str
    priority: int
    arrived: float
    order: int


class FairQueue(Generic[T]):
    """Entries (hashable, each at most once) in the order above. `waiting` counts them by tenant.

    `beside`: a queue whose counter and `waiting` it shares, so that a tenant with entries in one of both is not idle.
    Nothing may be refunded then.
    """

    def __init__(self, beside: FairQueue[Any] | None = None) -> None:
        self.counter: VirtualTokenCounter = VirtualTokenCounter() if beside is None else beside.counter
        self.waiting: dict[str, int] = {} if beside is None else beside.waiting
        self._places: dict[T, Place] = {}
        self._classes: dict[int, _Class[T]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, entry: T) -> bool:
        return entry in self._places

    def __iter__(self) -> Iterator[T]:
        """The entries in the order of `push`."""
        return iter(self._places)

    def push(self, entry: T, place: Place, *, returning: bool = False) -> None:
        """Add an entry. `returning`: the entry was chosen before, so its tenant's counter is not lifted."""
        tenant, priority = place.tenant, place.priority
        if tenant not in self.waiting and not returning:
            self.counter.arrive(tenant, self.waiting)
        self.waiting[tenant] = self.waiting.get(tenant, 0) + 1
        self._places[entry] = place
        if priority not in self._classes:
            self._classes[priority] = _Class(self.counter)
        self._classes[priority].add(entry, place)

    def remove(self, entry: T) -> Place:
        """Remove an entry of the queue; returns the place that it had."""
        place = self._places.pop(entry)
        members = self._classes[place.priority]
        members.remove(place)
        if not members:
            del self._classes[place.priority]
        self.waiting[place.tenant] -= 1
        if not self.waiting[place.tenant]:
            del self.waiting[place.tenant]
        return place

    def head(self, now: float) -> T | None:
        """The next entry to serve, None if the queue is empty."""
        best: tuple[int, int] | None = None
        turn = None
        for priority, members in self._classes.items():
            oldest = self._places[members.oldest()]
            standing = level(priority, now - oldest.arrived), -oldest.order
            if best is None or standing > best:
                best, turn = standing, members
        return None if turn is None else turn.next()

    def settle(self, tenant: str, tokens: float) -> None:
        """Charge a tenant the tokens beyond the first charge of its requests; negative for a refund."""
        self.counter.charge(tenant, tokens)
        if tokens < 0:
            for members in self._classes.values():
                members.lowered(tenant)

    def oldest(self) -> float | None:
        """The arrival of the oldest entry; None without one."""
        return min((self._places[members.oldest()].arrived for members in self._classes.values()), default=None)

    def by_priority(self) -> dict[int, int]:
        """The number of entries of each priority."""
        return {priority: len(members) for priority, members in sorted(self._classes.items())}

    def lines(self, priority: int) -> dict[str, dict[int, T]]:
        """The entries of a priority, which must have some, by tenant and `Place.order`, in the order of `push`."""
        return {tenant: line.entries for tenant, line in self._classes[priority].lines.items()}


class _Class(Generic[T]):
    """Entries of one priority; empty only during construction."""

    __slots__ = ("_all", "_counter", "_numbers", "_turns", "_valid", "lines")

    def __init__(self, counter: VirtualTokenCounter) -> None:
        self.lines: dict[str, _Line[T]] = {}
        self._all: _Line[T] = _Line()
        self._counter = counter
        self._numbers = 0
        # A heap of (counter, number, tenant); `_valid` has the current entry of each tenant with a line. Counters grow
        # while tenants wait: an outdated entry is corrected when it reaches the top.
        self._turns: list[_Turn] = []
        self._valid: dict[str, _Turn] = {}

    def __len__(self) -> int:
        return len(self._all.entries)

    def add(self, entry: T, place: Place) -> None:
        self._all.add(entry, place.order)
        line = self.lines.get(place.tenant)
        if line is None:
            line = self.lines[place.tenant] = _Line()
            self._numbers += 1
            heapq.heappush(self._turns, self._turn(place.tenant, self._numbers))
        line.add(entry, place.order)

    def remove(self, place: Place) -> None:
        self._all.remove(place.order)
        line = self.lines[place.tenant]
        line.remove(place.order)
        if not line.entries:
            del self.lines[place.tenant], self._valid[place.tenant]

    def oldest(self) -> T:
        return self._all.first()

    def next(self) -> T:
        while True:
            turn = self._turns[0]
            served, number, tenant = turn
            if self._valid.get(tenant) is not turn:
                heapq.heappop(self._turns)
            elif served != self._counter.served(tenant):
                heapq.heapreplace(self._turns, self._turn(tenant, number))
            else:
                return self.lines[tenant].first()

    def lowered(self, tenant: str) -> None:
        """Handle a decreased counter: push a corrected entry now; the outdated one is dropped at the top."""
        if tenant not in self._valid:
            return
        _, number, _ = self._valid[tenant]
        heapq.heappush(self._turns, self._turn(tenant, number))
        if len(self._turns) > _SMALL and len(self._turns) > 2 * len(self._valid):
            self._turns = sorted(self._valid.values())

    def _turn(self, tenant: str, number: int) -> _Turn:
        turn = self._valid[tenant] = self._counter.served(tenant), number, tenant
        return turn


class _Line(Generic[T]):
    """Entries by order of arrival: a heap of their numbers with lazy removal."""

    __slots__ = ("_heap", "entries")

    def __init__(self) -> None:
        self.entries: dict[int, T] = {}
        self._heap: list[int] = []

    def add(self, entry: T, order: int) -> None:
        self.entries[order] = entry
        heapq.heappush(self._heap, order)

    def remove(self, order: int) -> None:
        del self.entries[order]
        if len(self._heap) > _SMALL and len(self._heap) > 2 * len(self.entries):
            self._heap = sorted(self.entries)

    def first(self) -> T:
        while self._heap[0] not in self.entries:
            heapq.heappop(self._heap)
        return self.entries[self._heap[0]]


_Turn = tuple[float, int, str]
