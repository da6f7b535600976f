"""KV events: the contents of the engine's prefix cache, and the changes since a reader's last request."""

from __future__ import annotations

from collections import deque
from itertools import islice

from octavo_protocol.hashing import keys
from octavo_protocol.load import CacheDelta

# Ten seconds at 3,000 blocks a second, the peak rate of the largest GPUs; readers poll every second.
MAX_CHANGES = 32768


class KvEventLog:
    """The keys in the prefix cache, and the order of the last `limit` changes.

    `first` is the sequence before any change. It must be above all sequences of earlier processes, so that their
    readers get the full contents again.
    """

    def __init__(self, first: int, limit: int = MAX_CHANGES) -> None:
        self.known: set[bytes] = set()
        self.sequence = first
        # The changed keys; `known` has their current state. A key that comes and goes between two polls is sent once.
        self._changes: deque[bytes] = deque(maxlen=limit)

    def apply(self, known: bytes, forgotten: bytes) -> None:
        """Record the changes of one iteration of the engine loop."""
        added, removed = keys(known), keys(forgotten)
        # Removals first: hashes with equal key prefixes count as one, and a cached key must not be reported absent.
        self.known.difference_update(removed)
        self.known.update(added)
        self._changes.extend(removed)
        self._changes.extend(added)
        self.sequence += len(added) + len(removed)

    def since(self, sequence: int) -> CacheDelta:
        """The changes after `sequence`; the full contents if that is too old or not from this log."""
        missed = self.sequence - sequence
        if not 0 <= missed <= len(self._changes):
            return CacheDelta(sequence=self.sequence, reset=True, added=b"".join(self.known))
        changed = set(islice(reversed(self._changes), missed))
        added = changed & self.known
        return CacheDelta(sequence=self.sequence, added=b"".join(added), removed=b"".join(changed - added))
