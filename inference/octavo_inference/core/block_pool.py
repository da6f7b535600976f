"""The block pool: who holds which block of KV, which blocks can be reused, and which goes next.

Every block is in exactly one place:

    pinned   ref > 0              held by sequences, in no list
    free     ref = 0, no hash     list `free`
    cached   ref = 0, hash        its policy's list `leaves` when no known block is its child, else `interior`

A block's children are the blocks that continue its chain of hashes. A block is taken from `free`, else the one of all
evictable `leaves` that expires first, else of all `interior` ones. Leaves go before their ancestors, since a block
without its ancestors can never be found again. With one policy, first to expire is least recently used; with several,
work that is kept for a short time goes before work that is kept for long. All operations are O(1) per block: the lists
are threaded through the blocks themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


class Block:
    """One block's bookkeeping. `stamp` orders releases; `prev` and `next` thread the list it is in.

    `expires` is the latest end that a release promised its content, by the rules of `policy`.
    """

    __slots__ = ("expires", "hash", "id", "next", "parent", "policy", "prev", "ref", "stamp")

    def __init__(self, block_id: int) -> None:
        self.id = block_id
        self.ref = 0
        self.hash: bytes | None = None
        self.parent: bytes | None = None
        self.stamp = 0
        self.policy = 0
        self.expires = 0.0
        self.prev: Block = self
        self.next: Block = self


class BlockList:
    """Doubly linked list through the blocks, with a sentinel that is its own neighbour when empty."""

    __slots__ = ("head", "size")

    def __init__(self) -> None:
        self.head = Block(-1)
        self.size = 0

    def append(self, block: Block) -> None:
        """Put at the end: the last to be taken."""
        self._link(self.head.prev, block)

    def prepend(self, block: Block) -> None:
        """Put at the front: the next to be taken."""
        self._link(self.head, block)

    def first(self) -> Block | None:
        """The next to be taken, None when empty."""
        return self.head.next if self.size else None

    def remove(self, block: Block) -> None:
        """Take out a block that is in this list."""
        block.prev.next = block.next
        block.next.prev = block.prev
        block.prev = block.next = block
        self.size -= 1

    def _link(self, before: Block, block: Block) -> None:
        block.prev, block.next = before, before.next
        before.next.prev = block
        before.next = block
        self.size += 1


class PoolError(Exception):
    """An invariant of the pool does not hold: a bug, found by `BlockPool.check` or by releasing a free block."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long released blocks of one policy stay cached: for `seconds`, at most `blocks` of them."""

    seconds: float
    blocks: int


@dataclass(frozen=True, slots=True)
class _Cached:
    """The cached blocks of one policy."""

    retention: Retention
    leaves: BlockList = field(default_factory=BlockList)
    interior: BlockList = field(default_factory=BlockList)

    @property
    def size(self) -> int:
        return self.leaves.size + self.interior.size


class BlockPool:
    """Hands out blocks 0..count-1, counts references and finds cached ones by hash.

    `retentions` are the policies, which sequences name by their index; without any, all is cached until its room is
    needed.
    Times are seconds of one clock, and never go back.
    """

    def __init__(self, count: int, retentions: Sequence[Retention] = ()) -> None:
        self.blocks = [Block(i) for i in range(count)]
        self.by_hash: dict[bytes, Block] = {}
        self.children: dict[bytes, int] = {}
        """How many known blocks are children of the block of this hash; absent when none."""
        self.free = BlockList()
        self._policies = [_Cached(each) for each in retentions or (Retention(math.inf, count),)]
        self.clock = 0
        # What `changes` has not told yet; None while nobody has asked, so that it costs nothing and cannot grow.
        self._changed: set[bytes] | None = None
        for block in self.blocks:
            self.free.append(block)

    @property
    def available(self) -> int:
        """Blocks that can be allocated now: free and cached ones."""
        return self.free.size + self.cached

    @property
    def cached(self) -> int:
        """Blocks with ref 0 that a prefix can still find."""
        return sum(cached.size for cached in self._policies)

    @property
    def pinned(self) -> int:
        """Blocks that sequences hold."""
        return len(self.blocks) - self.available

    def match(self, hashes: Iterable[bytes], now: float = 0.0) -> list[int]:
        """The longest run of known blocks from the start of a chain. They are not held: `acquire` them."""
        found = []
        for key in hashes:
            block = self.by_hash.get(key)
            if block is None or (block.ref == 0 and block.expires <= now):
                break
            found.append(block.id)
        return found

    def idle(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks nobody holds, so that holding them makes as many fewer available."""
        return sum(1 for i in block_ids if self.blocks[i].ref == 0)

    def shared(self, block_id: int) -> bool:
        """Held more than once: must be copied before it is written."""
        return self.blocks[block_id].ref > 1

    def acquire(self, block_ids: Iterable[int]) -> None:
        """Hold blocks that are known or already held."""
        for i in block_ids:
            block = self.blocks[i]
            if block.ref == 0:
                self._unlist(block)
            block.ref += 1

    def allocate(self, count: int) -> list[int] | None:
        """Hold `count` blocks of undefined content, evicting cached ones; None and no change when there are too few."""
        if count > self.available:
            return None
        taken = []
        for _ in range(count):
            block = self.free.first()
            if block is not None:
                self.free.remove(block)
            else:
                block = self._evict()
            block.ref = 1
            taken.append(block.id)
        return taken

    def release(self, block_ids: Sequence[int], policy: int = 0, now: float = 0.0) -> None:
        """Let go of a sequence's blocks, given in order; the tail becomes the first to be evicted."""
        retention = self._policies[policy].retention
        for i in reversed(block_ids):
            block = self.blocks[i]
            if block.ref <= 0:
                raise PoolError(f"block {i} is released but nobody holds it")
            block.ref -= 1
            if block.ref == 0:
                self.clock += 1
                block.stamp = self.clock
                if block.hash is None:
                    self.free.prepend(block)
                    continue
                # The policy that promised the latest end holds.
                if now + retention.seconds >= block.expires:
                    block.policy, block.expires = policy, now + retention.seconds
                cached = self._policies[block.policy]
                (cached.interior if block.hash in self.children else cached.leaves).append(block)
                if cached.size > cached.retention.blocks:
                    self._drop(cached.leaves.first() or cached.interior.first())

    def expire(self, now: float) -> None:
        """Free the content that nobody may find any more, leaves first. O(1) for each block that was ever cached."""
        for cached in self._policies:
            block = cached.leaves.first()
            while block is not None and block.expires <= now:
                self._drop(block)
                block = cached.leaves.first()

    def forget(self, hashes: Sequence[bytes]) -> None:
        """Make these blocks, held or cached, not findable any more; those nobody holds become free."""
        for key in reversed(hashes):
            block = self.by_hash.get(key)
            if block is not None and block.ref == 0:
                self._drop(block)
            elif block is not None:
                self._forget(block)

    def reset(self) -> None:
        """Forget all content. Held blocks stay held."""
        self.forget([block.hash for block in self.blocks if block.hash is not None])

    def register(self, block_id: int, key: bytes, parent: bytes) -> None:
        """Make a held, completely computed block findable. The first block of a hash stays the known one."""
        block = self.blocks[block_id]
        if block.hash is not None or key in self.by_hash:
            return
        block.hash, block.parent = key, parent
        self.by_hash[key] = block
        if self._changed is not None:
            self._changed.add(key)
        self.children[parent] = self.children.get(parent, 0) + 1
        before = self.by_hash.get(parent)
        if before is not None and before.ref == 0 and self.children[parent] == 1:
            cached = self._policies[before.policy]
            cached.leaves.remove(before)
            cached.interior.append(before)

    def changes(self) -> tuple[list[bytes], list[bytes]]:
        """Hashes that are known and that are not, of all that changed since the last call; the first tells all known.

        Whoever asked once must go on asking: what was not told is remembered.
        """
        changed = self.by_hash.keys() if self._changed is None else self._changed
        known = [key for key in changed if key in self.by_hash]
        forgotten = [key for key in changed if key not in self.by_hash]
        self._changed = set()
        return known, forgotten

    def _evict(self) -> Block:
        block = self._first_to_expire([cached.leaves for cached in self._policies])
        if block is None:
            # Only blocks whose children are all held: their chain was computed twice at the same time.
            block = self._first_to_expire([cached.interior for cached in self._policies])
        if block is None:
            raise PoolError("no block to evict although some are available")
        self._unlist(block)
        self._forget(block)
        return block

    def _first_to_expire(self, lists: Iterable[BlockList]) -> Block | None:
        heads = [head for head in (blocks.first() for blocks in lists) if head is not None]
        return min(heads, key=lambda block: (block.expires, block.stamp), default=None)

    def _drop(self, block: Block | None) -> None:
        """Free a cached block."""
        if block is None:
            raise PoolError("no block to drop although some are cached")
        self._unlist(block)
        self._forget(block)
        self.free.append(block)

    def _forget(self, block: Block) -> None:
        key, parent = block.hash, block.parent
        if key is None or parent is None:
            raise PoolError(f"block {block.id} is listed as cached without a hash")
        del self.by_hash[key]
        if self._changed is not None:
            self._changed.add(key)
        block.hash = block.parent = None
        block.policy, block.expires = 0, 0.0
        left = self.children[parent] - 1
        if left:
            self.children[parent] = left
            return
        del self.children[parent]
        before = self.by_hash.get(parent)
        if before is not None and before.ref == 0:
            cached = self._policies[before.policy]
            cached.interior.remove(before)
            # Released together with its child it is the next to go; used since then it counts as recent.
            first = cached.leaves.first()
            if first is None or before.stamp <= first.stamp:
                cached.leaves.prepend(before)
            else:
                cached.leaves.append(before)

    def _unlist(self, block: Block) -> None:
        if block.hash is None:
            self.free.remove(block)
        elif block.hash in self.children:
            self._policies[block.policy].interior.remove(block)
        else:
            self._policies[block.policy].leaves.remove(block)

    def check(self, held: Iterable[Sequence[int]]) -> None:
        """Check all invariants against the blocks that sequences hold. Raises `PoolError` naming the difference."""
        refs = [0] * len(self.blocks)
        for block_ids in held:
            for i in block_ids:
                refs[i] += 1
        children: dict[bytes, int] = {}
        for block in self.blocks:
            if block.ref != refs[block.id]:
                raise PoolError(f"block {block.id} has ref {block.ref}, {refs[block.id]} sequences hold it")
            if block.hash is not None and block.parent is not None:
                children[block.parent] = children.get(block.parent, 0) + 1
                if self.by_hash.get(block.hash) is not block:
                    raise PoolError(f"block {block.id} has a hash that finds another block")
        if children != self.children or len(self.by_hash) != sum(children.values()):
            raise PoolError("counts of children do not match the registered blocks")
        listed = {"free": _walk("free", self.free)}
        for i, cached in enumerate(self._policies):
            listed |= {
                f"leaves {i}": _walk("leaves", cached.leaves),
                f"interior {i}": _walk("interior", cached.interior),
            }
            if cached.size > cached.retention.blocks:
                raise PoolError(f"policy {i} keeps {cached.size} blocks, it may keep {cached.retention.blocks}")
        for block in self.blocks:
            place = "interior" if block.hash in children else "leaves"
            expected = set() if block.ref else {"free"} if block.hash is None else {f"{place} {block.policy}"}
            found = {name for name, ids in listed.items() if block.id in ids}
            if found != expected:
                raise PoolError(f"block {block.id} (ref {block.ref}) is in {found or 'no list'}, expected {expected}")


def _walk(name: str, blocks: BlockList) -> set[int]:
    ids: set[int] = set()
    block = blocks.head.next
    while block is not blocks.head:
        if block.id in ids or block.next.prev is not block:
            raise PoolError(f"list {name} is broken at block {block.id}")
        ids.add(block.id)
        block = block.next
    if len(ids) != blocks.size:
        raise PoolError(f"list {name} has {len(ids)} blocks, its size says {blocks.size}")
    return ids
