"""The queue of requests that wait for a pod: bounded by count and bytes, first in, first out.

The queue itself is plain data; who waits on a ticket and for how long is the caller's business.
"""

from __future__ import annotations

from asyncio import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from octavo_gateway.prompts import NO_PROMPT, Prompt

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much one deployment may hold. `seconds`: the longest a request waits."""

    requests: int = 1024
    size: int = 64 * 1024 * 1024
    seconds: float = 300.0


@dataclass(slots=True, eq=False)
class Ticket(Generic[T]):
    """One held request: its size in bytes and prompt tokens, since when, and the future that is its turn.

    `prompt` is what a pod will be chosen by.
    """

    size: int
    tokens: int
    since: float
    granted: Future[T]
    prompt: Prompt = NO_PROMPT


@dataclass(slots=True)
class HoldQueue(Generic[T]):
    """Tickets in order of arrival. `size` and `tokens` are the sums over them."""

    bounds: Bounds
    size: int = 0
    tokens: int = 0
    _tickets: dict[int, Ticket[T]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._tickets)

    def offer(self, ticket: Ticket[T]) -> bool:
        """Put a ticket at the end; False when the queue is full."""
        if len(self) >= self.bounds.requests or self.size + ticket.size > self.bounds.size:
            return False
        self._tickets[id(ticket)] = ticket
        self.size += ticket.size
        self.tokens += ticket.tokens
        return True

    def head(self) -> Ticket[T] | None:
        """The ticket that is next."""
        return next(iter(self._tickets.values()), None)

    def remove(self, ticket: Ticket[T]) -> None:
        """Take a ticket out, wherever it is; nothing happens when it is not in the queue."""
        if self._tickets.pop(id(ticket), None) is not None:
            self.size -= ticket.size
            self.tokens -= ticket.tokens

    def oldest(self, now: float) -> float:
        """Seconds the first ticket has waited; 0 when there is none."""
        head = self.head()
        return now - head.since if head else 0.0
