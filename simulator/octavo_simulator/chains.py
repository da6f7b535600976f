"""The pool's books in blocks: what is pinned, and what is kept of prefixes for reuse. Pure.

A chain is the blocks of one prefix; sequences that share it pin its first blocks, the rest is cached and goes, least
recently used first and from its tail, when room is needed. What a sequence had for itself is kept under a name nobody
asks for: it can only push others out, as blocks of one-off prompts do.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import count
from struct import Struct

from octavo_protocol.load import CacheDelta

_KEY = Struct("<II")


@dataclass(slots=True, eq=False)
class Chain:
    """Blocks of one prefix, how many of them (from the start) are pinned, and by how many sequences."""

    blocks: int = 0
    pinned: int = 0
    users: int = 0


def block_key(prefix: int, number: int) -> bytes:
    """What stands for the engine's hash of a prefix's block; never zero."""
    return _KEY.pack(number, prefix + 1)


class Chains:
    """A pool of `total` blocks. `available` ones can be taken: free, or cached and evicted for it."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.pinned = 0
        self.cached = 0
        # What happened to prefixes: (prefix, blocks before, blocks after).
        self.changes: list[tuple[int, int, int]] = []
        self._chains: dict[int, Chain] = {}
        self._lru: OrderedDict[int, Chain] = OrderedDict()
        self._names = count(-2, -1)

    @property
    def available(self) -> int:
        """Blocks that are not pinned."""
        return self.total - self.pinned

    @property
    def held(self) -> int:
        """Blocks pinned through chains."""
        return sum(chain.pinned for chain in self._chains.values())

    def match(self, prefix: int, limit: int) -> tuple[int, int]:
        """Blocks of `prefix` that can be reused, at most `limit`, and how many of them nobody has pinned."""
        chain = self._chains.get(prefix) if prefix >= 0 else None
        if chain is None:
            return 0, 0
        hits = min(limit, chain.blocks)
        return hits, max(0, hits - chain.pinned)

    def acquire(self, prefix: int, hits: int) -> None:
        """Pin the first blocks of a chain for one sequence."""
        chain = self._chains[prefix]
        self._pin(prefix, chain, max(chain.pinned, hits))
        chain.users += 1

    def extend(self, prefix: int, attached: int, blocks: int) -> int:
        """Let a chain go on with a sequence's own blocks, if the sequence holds all of it; the blocks attached then."""
        if prefix < 0 or blocks <= attached:
            return attached
        chain = self._chains.setdefault(prefix, Chain())
        if chain.blocks != attached or (attached and not chain.users):
            return attached
        chain.users += not attached
        self.changes.append((prefix, attached, blocks))
        chain.blocks = chain.pinned = blocks
        return blocks

    def release(self, prefix: int, attached: int, own: int) -> None:
        """A sequence is over: it had `attached` blocks of the chain, and `own` ones."""
        if attached:
            chain = self._chains[prefix]
            chain.users -= 1
            if not chain.users:
                self._pin(prefix, chain, 0)
                self._lru.move_to_end(prefix)
        if own:
            name = next(self._names)
            self._chains[name] = self._lru[name] = Chain(own)
            self.pinned -= own
            self.cached += own

    def delta(self, after: int) -> CacheDelta:
        """What changed since sequence `after`, as pods report it."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for prefix, before, now in self.changes[max(0, after - 1) :]:
            first.setdefault(prefix, before)
            last[prefix] = now
        added = [block_key(prefix, n) for prefix, now in last.items() for n in range(first[prefix], now)]
        removed = [block_key(prefix, n) for prefix, now in last.items() for n in range(now, first[prefix])]
        return CacheDelta(
            sequence=len(self.changes) + 1, reset=not after, added=b"".join(added), removed=b"".join(removed)
        )

    def take(self, blocks: int) -> None:
        """Pin blocks that are known to be available."""
        self.pinned += blocks
        if self.pinned + self.cached > self.total:
            self._evict()

    def clear(self) -> None:
        """Drop all that is cached."""
        for prefix, chain in tuple(self._lru.items()):
            self._shrink(prefix, chain, chain.blocks - chain.pinned)

    def check(self) -> None:
        """Compare the sums with the chains. Raises `AssertionError`: for tests."""
        cached = sum(chain.blocks - chain.pinned for chain in self._chains.values())
        if cached != self.cached or self.pinned + self.cached > self.total:
            raise AssertionError(
                f"{self.cached} blocks cached, chains have {cached}; {self.pinned} of {self.total} pinned"
            )
        if self._lru.keys() != {name for name, chain in self._chains.items() if chain.blocks > chain.pinned}:
            raise AssertionError("the order of eviction does not list what can be evicted")

    def _pin(self, prefix: int, chain: Chain, pinned: int) -> None:
        self.pinned += pinned - chain.pinned
        self.cached -= pinned - chain.pinned
        chain.pinned = pinned
        if chain.blocks > pinned:
            self._lru.setdefault(prefix, chain)
        else:
            self._lru.pop(prefix, None)

    def _evict(self) -> None:
        over = self.pinned + self.cached - self.total
        while over > 0:
            prefix, chain = next(iter(self._lru.items()))
            gone = min(over, chain.blocks - chain.pinned)
            self._shrink(prefix, chain, gone)
            over -= gone

    def _shrink(self, prefix: int, chain: Chain, gone: int) -> None:
        if prefix >= 0:
            self.changes.append((prefix, chain.blocks, chain.blocks - gone))
        chain.blocks -= gone
        self.cached -= gone
        if chain.blocks == chain.pinned:
            del self._lru[prefix]
            if not chain.blocks:
                del self._chains[prefix]
