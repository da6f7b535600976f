"""The waiting queue: sequences in fair order (`octavo_common.fair_queue`), and totals over them for the load report.

A preempted sequence returns to its old place, since the order is that of arrival.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo_common import fair_queue
from octavo_common.fair_queue import FairQueue, Place
from octavo_common.virtual_token_counter import VirtualTokenCounter
from octavo_inference.core.sequence import Sequence


def level(sequence: Sequence, now: float) -> int:
    """The request's priority, aged by its waiting time."""
    return fair_queue.level(sequence.request.priority, now - sequence.arrived)


def place_of(sequence: Sequence) -> Place:
    """The position of a sequence among those that wait."""
    request = sequence.request
    return Place(request.tenant, request.priority, sequence.arrived, sequence.arrival)


class WaitingQueue:
    """Waiting sequences. `tokens` and `uncached` are running totals; `counter` is the service per tenant.

    Charges to the counter must be positive: the order is corrected only for counters that have grown.
    """

    def __init__(self) -> None:
        self._fair: FairQueue[Sequence] = FairQueue()
        self._sizes: dict[Sequence, tuple[int, int]] = {}
        self.tokens = 0
        self.uncached = 0

    def __len__(self) -> int:
        return len(self._fair)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._fair

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._fair)

    @property
    def counter(self) -> VirtualTokenCounter:
        """Number of tokens each tenant has been served."""
        return self._fair.counter

    def beside(self) -> FairQueue[str]:
        """A queue of requests that wait for something else first, in the same order."""
        return FairQueue(self._fair)

    def push(self, sequence: Sequence, uncached: int) -> None:
        """Add a sequence with an estimated `uncached` tokens to compute."""
        self._fair.push(sequence, place_of(sequence), returning=sequence.started)
        self._sizes[sequence] = (sequence.total, uncached)
        self.tokens += sequence.total
        self.uncached += uncached

    def peek(self, now: float) -> Sequence | None:
        """The next sequence to run."""
        return self._fair.head(now)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that is in the queue."""
        self._fair.remove(sequence)
        total, uncached = self._sizes.pop(sequence)
        self.tokens -= total
        self.uncached -= uncached

    def oldest(self) -> float | None:
        """Earliest time at which a sequence in the queue was enqueued, None if the queue is empty."""
        return next(iter(self._fair)).enqueued if len(self._fair) else None
