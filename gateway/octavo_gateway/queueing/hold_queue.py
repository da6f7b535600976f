"""The queue of requests that wait for a pod, bounded by count and bytes; `fair_queue` has its order.

When the queue is full, a request can still come in for one that has less right to its place: one of a lower priority,
or one of the tenant that has most in the queue (`displaced`). So one tenant cannot fill it.

The queue itself is plain data; awaiting a turn, and for how long, is up to the caller.
"""

from __future__ import annotations

from asyncio import Future
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from octavo_common.fair_queue import FairQueue, Place
from octavo_gateway.routing.prompt_features import NO_PROMPT, Prompt

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much one deployment may hold. `seconds`: the longest a request waits."""

    requests: int = 1024
    size: int = 64 * 1024 * 1024
    seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class RequestAttributes:
    """Whose a request is, and how urgent. `most_output`: tokens it may generate at most, None when not bounded."""

    tenant: str = ""
    priority: int = 0
    most_output: float | None = None


PLAIN = RequestAttributes()


@dataclass(slots=True, eq=False)
class QueuedRequest(Generic[T]):
    """One held request: its size in bytes and prompt tokens, since when, and the future that is its turn.

    `prompt` is what a pod will be chosen by, `attributes` who waits.
    """

    size: int
    tokens: int
    since: float
    granted: Future[T]
    prompt: Prompt = NO_PROMPT
    attributes: RequestAttributes = PLAIN

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.attributes.tenant

    @property
    def priority(self) -> int:
        """Its class."""
        return self.attributes.priority


@dataclass(slots=True)
class HoldQueue(Generic[T]):
    """Tickets in fair order. `size` is the bytes, `tokens` the prompt tokens of all that wait."""

    bounds: Bounds
    size: int = 0
    tokens: int = 0
    _fair: FairQueue[QueuedRequest[T]] = field(default_factory=FairQueue)
    _pushed: int = 0
    # Bytes of each tenant's tickets of a priority: what arrives at a full queue is refused at once.
    _sizes: Counter[tuple[int, str]] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self._fair)

    def __iter__(self) -> Iterator[QueuedRequest[T]]:
        return iter(tuple(self._fair))

    def offer(self, ticket: QueuedRequest[T]) -> bool:
        """Put a ticket behind those of its tenant and priority; False when the queue is full."""
        if not self._fits(ticket, len(self), self.size):
            return False
        self._pushed += 1
        self._fair.push(ticket, Place(ticket.tenant, ticket.priority, ticket.since, self._pushed))
        self._sizes[ticket.priority, ticket.tenant] += ticket.size
        self.size += ticket.size
        self.tokens += ticket.tokens
        return True

    def displaced(self, ticket: QueuedRequest[T]) -> list[QueuedRequest[T]]:
        """The tickets to remove so that `ticket` fits; empty when none has to go or it has no more right than they."""
        if not len(self) or self._fits(ticket, len(self), self.size):
            return []
        lowest = min(self._fair.by_priority())
        lines = self._fair.lines(lowest)
        weights = {tenant: self._share(len(line), self._sizes[lowest, tenant]) for tenant, line in lines.items()}
        heaviest = max(weights, key=weights.__getitem__)
        least = 0.0
        if lowest == ticket.priority:
            # The tenant that gives way must have no less than the other one then.
            least = weights.get(ticket.tenant, 0.0) + self._share(1, ticket.size)
        if lowest > ticket.priority or (lowest == ticket.priority and heaviest == ticket.tenant):
            return []
        going: list[QueuedRequest[T]] = []
        weight, count, size = weights[heaviest], len(self), self.size
        for youngest in reversed(lines[heaviest].values()):
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
        waiting = self._fair.waiting
        return len(waiting) > 1 and waiting.get(tenant, 0) * len(waiting) >= len(self)

    def head(self, now: float) -> QueuedRequest[T] | None:
        """The ticket that is next."""
        return self._fair.head(now)

    def remove(self, ticket: QueuedRequest[T]) -> None:
        """Take a ticket out, wherever it is; nothing happens when it is not in the queue."""
        if ticket not in self._fair:
            return
        self._fair.remove(ticket)
        self._sizes[ticket.priority, ticket.tenant] -= ticket.size
        if not self._sizes[ticket.priority, ticket.tenant]:
            del self._sizes[ticket.priority, ticket.tenant]
        self.size -= ticket.size
        self.tokens -= ticket.tokens

    def choose(self, tenant: str, charge: float) -> None:
        """Charge a tenant for a request that is sent, whether it was held or not."""
        self._fair.counter.choose(tenant, charge)

    def settle(self, tenant: str, more: float) -> None:
        """A tenant's request is over and counts `more` than was charged, or less."""
        self._fair.settle(tenant, more)

    def oldest(self, now: float) -> float:
        """Seconds the ticket that came first has waited; 0 when there is none."""
        return now - next(iter(self._fair)).since if len(self) else 0.0

    def by_priority(self) -> dict[int, int]:
        """How many wait in each class."""
        return self._fair.by_priority()

    def _fits(self, ticket: QueuedRequest[T], count: int, size: int) -> bool:
        return count < self.bounds.requests and size + ticket.size <= self.bounds.size

    def _share(self, count: int, size: int) -> float:
        """The share of the queue's bounds that so many requests of so many bytes take."""
        return count / max(1, self.bounds.requests) + size / max(1, self.bounds.size)
