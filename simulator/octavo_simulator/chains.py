"""Block pool accounting: pinned blocks, and cached blocks of prefixes. Pure.

A chain is the blocks of one prefix. Sequences that share it pin its first blocks; the rest is cached, and evicted from
its tail, least recently used chain first. Private blocks of a finished sequence become a chain that no request matches:
like blocks of one-off prompts, they only displace others.
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
    """Blocks of one prefix, the number of pinned ones (from the start), and of the sequences that pin them."""

    blocks: int = 0
    pinned: int = 0
    users: int = 0


def block_key(prefix: int, number: int) -> bytes:
    """Substitute for the engine's hash of a prefix's block; never zero."""
    return _KEY.pack(number, prefix + 1)


class Chains:
    """A pool of `total` blocks. `available` blocks are free, or cached and evictable."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.pinned = 0
        self.cached = 0
        # Changes of prefix chains: (prefix, blocks before, blocks after).
        self.changes: list[tuple[int, int, int]] = []
        self._chains: dict[int, Chain] = {}
        self._lru: OrderedDict[int, Chain] = OrderedDict()
        self._names = count(-2, -1)

    @property
    def available(self) -> int:
        """The number of blocks that are not pinned."""
        return self.total - self.pinned

    @property
    def held(self) -> int:
        """The number of blocks pinned through chains."""
        return sum(chain.pinned for chain in self._chains.values())

    def match(self, prefix: int, limit: int) -> tuple[int, int]:
        """Reusable blocks of `prefix`, at most `limit`, and the number of unpinned ones among them."""
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
        """Extend a chain with a sequence's own blocks, if the sequence holds all of it; returns the attached blocks."""
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
        """Release a finished sequence's `attached` blocks of the chain and its `own` blocks."""
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
        """The changes since sequence number `after`, as in a load report."""
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
        """Pin `blocks` blocks; the caller has checked that they are available."""
        self.pinned += blocks
        if self.pinned + self.cached > self.total:
            self._evict()

    def clear(self) -> None:
        """Evict all cached blocks."""
        for prefix, chain in tuple(self._lru.items()):
            self._shrink(prefix, chain, chain.blocks - chain.pinned)

    def check(self) -> None:
        """Check the counters against the chains, for tests. Raises `AssertionError`."""
        cached = sum(chain.blocks - chain.pinned for chain in self._chains.values())
        if cached != self.cached or self.pinned + self.cached > self.total:
            raise AssertionError(
                f"{self.cached} blocks cached, chains have {cached}; {self.pinned} of {self.total} pinned"
            )
        if self._lru.keys() != {name for name, chain in self._chains.items() if chain.blocks > chain.pinned}:
            raise AssertionError("the LRU order differs from the evictable chains")

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
