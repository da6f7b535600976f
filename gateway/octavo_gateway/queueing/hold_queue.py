"""The queue of requests that wait for a pod, bounded by count and bytes; `fair_queue` defines its order.

A request at a full queue may displace others (`displaced`): those of a lower priority, or those of the tenant with the
largest share of the queue. So one tenant cannot fill the queue.

A request that waits for its adapter is `parked`: it has no turn, so that others pass it, until it returns to its former
position in the queue. It counts as held like any other.

The queue itself is plain data; the caller awaits the turn and bounds the wait.
"""

from __future__ import annotations

from asyncio import Future
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeVar

from octavo_common.fair_queue import FairQueue, Place
from octavo_gateway.routing.prompt_features import NO_PROMPT, Prompt

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one deployment's queue: requests, their bytes, and `seconds`, the longest wait of a request."""

    requests: int = 1024
    size: int = 64 * 1024 * 1024
    seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class RequestAttributes:
    """Tenant and priority of a request. `most_output`: upper bound of its output tokens, None without one.

    `in_engine` is False for a request that needs no engine: any replica answers it, full or not. `adapter`: the name of
    its adapter, "" for the base model.
    """

    tenant: str = ""
    priority: int = 0
    most_output: float | None = None
    in_engine: bool = True
    adapter: str = ""


PLAIN = RequestAttributes()


@dataclass(slots=True, eq=False)
class QueuedRequest(Generic[T]):
    """One held request: its bytes, its prompt tokens, when its wait began, and the future that its turn resolves.

    `prompt` has the features that routing needs, `attributes` tenant and priority.
    """

    size: int
    tokens: int
    since: float
    granted: Future[T]
    prompt: Prompt = NO_PROMPT
    attributes: RequestAttributes = PLAIN

    @property
    def tenant(self) -> str:
        """The tenant of the request."""
        return self.attributes.tenant

    @property
    def priority(self) -> int:
        """The priority of the request."""
        return self.attributes.priority


@dataclass(slots=True)
class HoldQueue(Generic[T]):
    """Tickets in fair order. `size`: bytes of all waiting requests; `tokens`: their prompt tokens."""

    bounds: Bounds
    size: int = 0
    tokens: int = 0
    _fair: FairQueue[QueuedRequest[T]] = field(default_factory=FairQueue)
    _parked: FairQueue[QueuedRequest[T]] = field(default_factory=FairQueue)
    _pushed: int = 0
    # Bytes of the tickets by priority and tenant: a full queue refuses a request at once, without a count of tickets.
    _sizes: Counter[tuple[int, str]] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self._fair) + len(self._parked)

    def __iter__(self) -> Iterator[QueuedRequest[T]]:
        return iter((*self._fair, *self._parked))

    @property
    def in_line(self) -> int:
        """Number of tickets that have a turn."""
        return len(self._fair)

    def parked(self) -> tuple[QueuedRequest[T], ...]:
        """The parked tickets."""
        return tuple(self._parked)

    def park(self, ticket: QueuedRequest[T]) -> None:
        """Take a ticket's turn."""
        self._parked.push(ticket, self._fair.remove(ticket))

    def unpark(self, ticket: QueuedRequest[T]) -> None:
        """Return a parked ticket to its former position."""
        self._fair.push(ticket, self._parked.remove(ticket))

    def offer(self, ticket: QueuedRequest[T]) -> bool:
        """Append a ticket to those of its tenant and priority; False if the queue is full."""
        if not self._fits(ticket, len(self), self.size):
            return False
        self._pushed += 1
        self._fair.push(ticket, Place(ticket.tenant, ticket.priority, ticket.since, self._pushed))
        self._sizes[ticket.priority, ticket.tenant] += ticket.size
        self.size += ticket.size
        self.tokens += ticket.tokens
        return True

    def displaced(self, ticket: QueuedRequest[T]) -> list[QueuedRequest[T]]:
        """The tickets to remove so that `ticket` fits; empty if it fits already or may not displace any."""
        if not len(self) or self._fits(ticket, len(self), self.size):
            return []
        lowest = min(self.by_priority())
        # Parked tickets are removed first: they cannot be sent soon.
        lines = [queue.lines(lowest) for queue in (self._parked, self._fair) if lowest in queue.by_priority()]
        counts: Counter[str] = Counter()
        for found in lines:
            counts.update({tenant: len(line) for tenant, line in found.items()})
        weights = {tenant: self._share(counts[tenant], self._sizes[lowest, tenant]) for tenant in counts}
        heaviest = max(weights, key=weights.__getitem__)
        least = 0.0
        if lowest == ticket.priority:
            # Afterwards the displaced tenant's share must not be smaller than that of this one.
            least = weights.get(ticket.tenant, 0.0) + self._share(1, ticket.size)
        if lowest > ticket.priority or (lowest == ticket.priority and heaviest == ticket.tenant):
            return []
        going: list[QueuedRequest[T]] = []
        weight, count, size = weights[heaviest], len(self), self.size
        for youngest in chain.from_iterable(reversed(found[heaviest].values()) for found in lines if heaviest in found):
            weight -= self._share(1, youngest.size)
            if weight < least - 1e-9:
                break
            going.append(youngest)
            count, size = count - 1, size - youngest.size
            if self._fits(ticket, count, size):
                return going
        return []

    def crowding(self, tenant: str) -> bool:
        """True if several tenants wait and this one has its share of the queue."""
        waiting, parked = self._fair.waiting, self._parked.waiting
        tenants = len(waiting) + sum(other not in waiting for other in parked)
        return tenants > 1 and (waiting.get(tenant, 0) + parked.get(tenant, 0)) * tenants >= len(self)

    def head(self, now: float) -> QueuedRequest[T] | None:
        """The next ticket."""
        return self._fair.head(now)

    def remove(self, ticket: QueuedRequest[T]) -> None:
        """Remove a ticket from any position; no effect if it is not in the queue."""
        queue = self._fair if ticket in self._fair else self._parked
        if ticket not in queue:
            return
        queue.remove(ticket)
        self._sizes[ticket.priority, ticket.tenant] -= ticket.size
        if not self._sizes[ticket.priority, ticket.tenant]:
            del self._sizes[ticket.priority, ticket.tenant]
        self.size -= ticket.size
        self.tokens -= ticket.tokens

    def choose(self, tenant: str, charge: float) -> None:
        """Charge a tenant for a request that is sent, held before or not."""
        self._fair.counter.choose(tenant, charge)

    def settle(self, tenant: str, more: float) -> None:
        """Correct the charge of a tenant's finished request by `more`, which may be negative."""
        self._fair.settle(tenant, more)

    def oldest(self, now: float) -> float:
        """Seconds that the oldest ticket has waited; 0 without one."""
        arrivals = [arrival for queue in (self._fair, self._parked) if (arrival := queue.oldest()) is not None]
        return now - min(arrivals, default=now)

    def by_priority(self) -> dict[int, int]:
        """Number of waiting requests of each priority."""
        return dict(sorted((Counter(self._fair.by_priority()) + Counter(self._parked.by_priority())).items()))

    def _fits(self, ticket: QueuedRequest[T], count: int, size: int) -> bool:
        return count < self.bounds.requests and size + ticket.size <= self.bounds.size

    def _share(self, count: int, size: int) -> float:
        """Share of the queue's bounds that `count` requests of `size` bytes take."""
        return count / max(1, self.bounds.requests) + size / max(1, self.bounds.size)
