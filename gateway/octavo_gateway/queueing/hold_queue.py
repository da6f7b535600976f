"""The queue of requests that wait for a pod, bounded by count and bytes.

Who is next:

1. **Priority with aging.** A class of priority stands where its oldest request stands: at its priority, and one more
   for every `AGING_SECONDS` that it waits. Whatever else arrives, it comes to be the highest.
2. **Tenants in turn.** Within a class it is the turn of the tenant that has had least (`fairness`).
3. **Order of arrival** within a tenant.

When the queue is full, a request can still come in for one that has less right to its place: one of a lower priority,
or one of the tenant that has most in the queue (`displaced`). So one tenant cannot fill it.

The queue itself is plain data; who waits on a ticket and for how long is the caller's business.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from octavo_gateway.queueing.virtual_token_counter import VirtualTokenCounter
from octavo_gateway.routing.prompt_features import NO_PROMPT, Prompt

T = TypeVar("T")

AGING_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much one deployment may hold. `seconds`: the longest a request waits."""

    requests: int = 1024
    size: int = 64 * 1024 * 1024
    seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class RequestAttributes:
    """On which terms a request waits. `most_output`: tokens it may generate at most, None when that is not bounded."""

    tenant: str = ""
    priority: int = 0
    most_output: float | None = None


PLAIN = RequestAttributes()


@dataclass(slots=True, eq=False)
class QueuedRequest(Generic[T]):
    """One held request: its size in bytes and prompt tokens, since when, and the future that is its turn.

    `prompt` is what a pod will be chosen by, `terms` who waits.
    """

    size: int
    tokens: int
    since: float
    granted: Future[T]
    prompt: Prompt = NO_PROMPT
    terms: RequestAttributes = PLAIN

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.terms.tenant

    @property
    def priority(self) -> int:
        """Its class."""
        return self.terms.priority


@dataclass(slots=True)
class _Line(Generic[T]):
    """Tickets in order of arrival, and the sum of their sizes."""

    tickets: dict[int, QueuedRequest[T]] = field(default_factory=dict)
    size: int = 0

    def __len__(self) -> int:
        return len(self.tickets)

    def add(self, ticket: QueuedRequest[T]) -> None:
        self.tickets[id(ticket)] = ticket
        self.size += ticket.size

    def remove(self, ticket: QueuedRequest[T]) -> None:
        del self.tickets[id(ticket)]
        self.size -= ticket.size

    def first(self) -> QueuedRequest[T]:
        return next(iter(self.tickets.values()))


@dataclass(slots=True)
class _Class(Generic[T]):
    """Tickets of one priority, all of them and by tenant."""

    all: _Line[T] = field(default_factory=_Line)
    lines: dict[str, _Line[T]] = field(default_factory=dict)

    def standing(self, priority: int, now: float) -> tuple[int, float]:
        """Where the class stands: level, then age."""
        oldest = self.all.first()
        return priority + int(max(0.0, now - oldest.since) // AGING_SECONDS), -oldest.since


@dataclass(slots=True)
class HoldQueue(Generic[T]):
    """Tickets in the order above. `tokens` is the sum over them; O(tenants + classes) for the next one."""

    bounds: Bounds
    tokens: int = 0
    ledger: VirtualTokenCounter = field(default_factory=VirtualTokenCounter)
    _all: _Line[T] = field(default_factory=_Line)
    _classes: dict[int, _Class[T]] = field(default_factory=dict)
    _tenants: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[QueuedRequest[T]]:
        return iter(tuple(self._all.tickets.values()))

    @property
    def size(self) -> int:
        """Bytes of all that wait."""
        return self._all.size

    def offer(self, ticket: QueuedRequest[T]) -> bool:
        """Put a ticket behind those of its tenant and priority; False when the queue is full."""
        if not self._fits(ticket, len(self), self.size):
            return False
        if ticket.tenant not in self._tenants:
            self.ledger.arrive(ticket.tenant, self._tenants)
        self._tenants[ticket.tenant] = self._tenants.get(ticket.tenant, 0) + 1
        members = self._classes.setdefault(ticket.priority, _Class())
        for line in (self._all, members.all, members.lines.setdefault(ticket.tenant, _Line())):
            line.add(ticket)
        self.tokens += ticket.tokens
        return True

    def displaced(self, ticket: QueuedRequest[T]) -> list[QueuedRequest[T]]:
        """The tickets to remove so that `ticket` fits; empty when none has to go or it has no more right than they."""
        if not self._classes or self._fits(ticket, len(self), self.size):
            return []
        lowest = min(self._classes)
        members = self._classes[lowest]
        heaviest = max(members.lines, key=lambda tenant: self._weight(members.lines[tenant]))
        line = members.lines[heaviest]
        least = 0.0
        if lowest == ticket.priority:
            # Whoever gives way must have no less than the other one then.
            least = self._weight(members.lines.get(ticket.tenant, _Line())) + self._share(1, ticket.size)
        if lowest > ticket.priority or (lowest == ticket.priority and heaviest == ticket.tenant):
            return []
        going: list[QueuedRequest[T]] = []
        weight, count, size = self._weight(line), len(self), self.size
        for youngest in reversed(line.tickets.values()):
            weight -= self._share(1, youngest.size)
            if weight < least - 1e-9:
                break
            going.append(youngest)
            count, size = count - 1, size - youngest.size
            if self._fits(ticket, count, size):
                return going
        return []

    def crowding(self, tenant: str) -> bool:
        """Whether a tenant, one of several who wait, has its share of the queue."""
        return len(self._tenants) > 1 and self._tenants.get(tenant, 0) * len(self._tenants) >= len(self)

    def head(self, now: float) -> QueuedRequest[T] | None:
        """The ticket that is next."""
        if not self._classes:
            return None
        turn = max(self._classes, key=lambda priority: self._classes[priority].standing(priority, now))
        lines = self._classes[turn].lines
        return lines[min(lines, key=self.ledger.served)].first()

    def remove(self, ticket: QueuedRequest[T]) -> None:
        """Take a ticket out, wherever it is; nothing happens when it is not in the queue."""
        if id(ticket) not in self._all.tickets:
            return
        members = self._classes[ticket.priority]
        for line in (self._all, members.all, members.lines[ticket.tenant]):
            line.remove(ticket)
        if not members.lines[ticket.tenant]:
            del members.lines[ticket.tenant]
        if not members.all:
            del self._classes[ticket.priority]
        self._tenants[ticket.tenant] -= 1
        if not self._tenants[ticket.tenant]:
            del self._tenants[ticket.tenant]
        self.tokens -= ticket.tokens

    def oldest(self, now: float) -> float:
        """Seconds the ticket that came first has waited; 0 when there is none."""
        return now - self._all.first().since if self._all else 0.0

    def by_priority(self) -> dict[int, int]:
        """How many wait in each class."""
        return {priority: len(members.all) for priority, members in sorted(self._classes.items())}

    def _fits(self, ticket: QueuedRequest[T], count: int, size: int) -> bool:
        return count < self.bounds.requests and size + ticket.size <= self.bounds.size

    def _weight(self, line: _Line[T]) -> float:
        return self._share(len(line), line.size)

    def _share(self, count: int, size: int) -> float:
        """The share of the queue's bounds that so many requests of so many bytes take."""
        return count / max(1, self.bounds.requests) + size / max(1, self.bounds.size)
