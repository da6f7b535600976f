"""KV events: the contents of the engine's prefix cache, and its changes since a reader last asked."""

from __future__ import annotations

from collections import deque
from itertools import islice

from octavo_protocol.hashing import keys
from octavo_protocol.load import CacheDelta

# At 3,000 blocks a second, what the largest GPUs compute and evict, ten seconds: readers ask every second.
MAX_CHANGES = 32768


class KvEventLog:
    """The keys that can be found now, and in which order the last `limit` changes came.

    `first` is the sequence before any change. It must be above all that earlier processes gave out, so that their
    readers get everything again.
    """

    def __init__(self, first: int, limit: int = MAX_CHANGES) -> None:
        self.known: set[bytes] = set()
        self.sequence = first
        # Which keys changed; how, `known` says. So a key that came and went within one reader's second is told once.
        self._changes: deque[bytes] = deque(maxlen=limit)

    def apply(self, known: bytes, forgotten: bytes) -> None:
        """Note what changed in one turn of the engine."""
        added, removed = keys(known), keys(forgotten)
        # In this order: two hashes that begin alike count as one, and what can be found must not be denied.
        self.known.difference_update(removed)
        self.known.update(added)
        self._changes.extend(removed)
        self._changes.extend(added)
        self.sequence += len(added) + len(removed)

    def since(self, sequence: int) -> CacheDelta:
        """The changes after `sequence`; all contents when that is too long ago or not of this log."""
        missed = self.sequence - sequence
        if not 0 <= missed <= len(self._changes):
            return CacheDelta(sequence=self.sequence, reset=True, added=b"".join(self.known))
        changed = set(islice(reversed(self._changes), missed))
        added = changed & self.known
        return CacheDelta(sequence=self.sequence, added=b"".join(added), removed=b"".join(changed - added))
