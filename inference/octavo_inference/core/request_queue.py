"""The waiting queue: sequences in fair order (`octavo_common.fair_queue`), and sums over them for the load report.

A preempted sequence comes back to its old place: its order is that of its arrival.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo_common import fair_queue
from octavo_common.fair_queue import FairQueue, Place
from octavo_common.virtual_token_counter import VirtualTokenCounter
from octavo_inference.core.sequence import Sequence


def level(sequence: Sequence, now: float) -> int:
    """Priority plus what it gained by waiting."""
    return fair_queue.level(sequence.request.priority, now - sequence.arrived)


class WaitingQueue:
    """`tokens` and `uncached` are sums over its sequences, kept as they change. `counter` is what tenants were served.

    Charges to the counter may only be positive: the order is corrected where a counter has grown.
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
        """How many tokens each tenant has been served."""
        return self._fair.counter

    def push(self, sequence: Sequence, uncached: int) -> None:
        """Add a sequence of which `uncached` tokens probably have to be computed."""
        request = sequence.request
        place = Place(request.tenant, request.priority, sequence.arrived, sequence.arrival)
        self._fair.push(sequence, place, returning=sequence.started)
        self._sizes[sequence] = (sequence.total, uncached)
        self.tokens += sequence.total
        self.uncached += uncached

    def peek(self, now: float) -> Sequence | None:
        """The next to run."""
        return self._fair.head(now)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is in the queue."""
        self._fair.remove(sequence)
        total, uncached = self._sizes.pop(sequence)
        self.tokens -= total
        self.uncached -= uncached

    def oldest(self) -> float | None:
        """Time the sequence entered that entered longest ago, None when empty."""
        return next(iter(self._fair)).enqueued if len(self._fair) else None
