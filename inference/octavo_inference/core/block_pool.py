"""The block pool: reference counts, prefix-cache lookup and eviction of KV blocks.

Every block is in exactly one state:

    pinned   ref > 0              held by sequences, in no list
    free     ref = 0, no hash     list `free`
    cached   ref = 0, hash        its policy's list `leaves` if it has no registered child, else `interior`

The children of a block are the blocks that continue its hash chain. Allocation takes a block from `free` first. Then it
evicts from the `leaves` of all policies, and last from the `interior` lists, each time the block that expires first.
Leaves are evicted before their ancestors, since a prefix match cannot reach a block whose ancestors are gone. Blocks of
sliding windows are found without their ancestors, so they are no children (`core.block_tables`). With one policy, the
order of expiry is LRU. With several, blocks with a short retention are evicted before those with a long one. All
operations are O(1) per block: the lists are intrusive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field


class Block:
    """Metadata of one block. `stamp` orders releases; `prev` and `next` link the list that contains it.

    `expires` is the latest expiry time that any release gave the content, under the retention of `policy`.
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
    """Intrusive doubly linked list of blocks. Its sentinel is its own neighbour when the list is empty."""

    __slots__ = ("head", "size")

    def __init__(self) -> None:
        self.head = Block(-1)
        self.size = 0

    def append(self, block: Block) -> None:
        """Insert at the end: the last block to be taken."""
        self._link(self.head.prev, block)

    def prepend(self, block: Block) -> None:
        """Insert at the front: the next block to be taken."""
        self._link(self.head, block)

    def first(self) -> Block | None:
        """The next block to be taken, None if the list is empty."""
        return self.head.next if self.size else None

    def remove(self, block: Block) -> None:
        """Remove a block that is in this list."""
        block.prev.next = block.next
        block.next.prev = block.prev
        block.prev = block.next = block
        self.size -= 1

    def __iter__(self) -> Iterator[int]:
        """The ids of the blocks, in order."""
        block = self.head.next
        while block is not self.head:
            yield block.id
            block = block.next

    def _link(self, before: Block, block: Block) -> None:
        block.prev, block.next = before, before.next
        before.next.prev = block
        before.next = block
        self.size += 1


class PoolError(Exception):
    """A violated pool invariant, which is a bug. Raised by `BlockPool.check` and by the release of a free block."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long blocks released under one policy stay cached: for `seconds`, at most `blocks` of them."""

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
    """Allocates blocks 0..count-1, counts references and finds cached blocks by hash.

    `retentions` are the policies, which sequences reference by index. Without any, every block stays cached until its
    space is needed. Times are seconds of one monotonic clock.
    """

    def __init__(self, count: int, retentions: Sequence[Retention] = ()) -> None:
        self.blocks = [Block(i) for i in range(count)]
        self.by_hash: dict[bytes, Block] = {}
        self.children: dict[bytes, int] = {}
        """Number of registered children by the parent block's hash; absent if zero."""
        self.free = BlockList()
        self._policies = [_Cached(each) for each in retentions or (Retention(math.inf, count),)]
        self.clock = 0
        # Hashes changed since the last `changes` call. None before the first call, so it costs nothing if unused.
        self._changed: set[bytes] | None = None
        for block in self.blocks:
            self.free.append(block)

    @property
    def available(self) -> int:
        """Number of blocks that can be allocated now: free and cached ones."""
        return self.free.size + self.cached

    @property
    def cached(self) -> int:
        """Number of blocks with ref 0 that a prefix match can still find."""
        return sum(cached.size for cached in self._policies)

    @property
    def pinned(self) -> int:
        """Number of blocks that sequences hold."""
        return len(self.blocks) - self.available

    def match(self, hashes: Iterable[bytes], now: float = 0.0) -> list[int]:
        """Return the longest run of registered blocks from the start of a hash chain. `acquire` adds the references."""
        found = []
        for key in hashes:
            block = self.by_hash.get(key)
            if block is None or (block.ref == 0 and block.expires <= now):
                break
            found.append(block.id)
        return found

    def idle(self, block_ids: Iterable[int]) -> int:
        """Number of these blocks with ref 0. Acquiring them reduces `available` by this number."""
        return sum(1 for i in block_ids if self.blocks[i].ref == 0)

    def shared(self, block_id: int) -> bool:
        """True if the block has several references, so it must be copied before a write."""
        return self.blocks[block_id].ref > 1

    def acquire(self, block_ids: Iterable[int]) -> None:
        """Add a reference to blocks that are cached or already held."""
        for i in block_ids:
            block = self.blocks[i]
            if block.ref == 0:
                self._unlist(block)
            block.ref += 1

    def allocate(self, count: int) -> list[int] | None:
        """Allocate `count` blocks of undefined content, evicting cached ones. None and no change if too few exist."""
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
        """Release a sequence's blocks, given in order. The tail is evicted first."""
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
                # The policy with the latest expiry wins.
                if now + retention.seconds >= block.expires:
                    block.policy, block.expires = policy, now + retention.seconds
                cached = self._policies[block.policy]
                (cached.interior if block.hash in self.children else cached.leaves).append(block)
                if cached.size > cached.retention.blocks:
                    self._drop(cached.leaves.first() or cached.interior.first())

    def expire(self, now: float) -> None:
        """Free expired cached blocks, leaves first. O(1) per block that was ever cached."""
        for cached in self._policies:
            block = cached.leaves.first()
            while block is not None and block.expires <= now:
                self._drop(block)
                block = cached.leaves.first()

    def forget(self, hashes: Sequence[bytes]) -> None:
        """Unregister these blocks, held or cached, so that no prefix match finds them. Cached ones become free."""
        for key in reversed(hashes):
            block = self.by_hash.get(key)
            if block is not None and block.ref == 0:
                self._drop(block)
            elif block is not None:
                self._forget(block)

    def reset(self) -> None:
        """Unregister all content. Held blocks keep their references."""
        self.forget([block.hash for block in self.blocks if block.hash is not None])

    def register(self, block_id: int, key: bytes, parent: bytes | None) -> None:
        """Register a held, completely computed block by its hash. The first block with a hash stays registered.

        Without a parent it is no one's child: it can be found when the blocks before it are gone.
        """
        block = self.blocks[block_id]
        if block.hash is not None or key in self.by_hash:
            return
        block.hash, block.parent = key, parent
        self.by_hash[key] = block
        if self._changed is not None:
            self._changed.add(key)
        if parent is None:
            return
        self.children[parent] = self.children.get(parent, 0) + 1
        before = self.by_hash.get(parent)
        if before is not None and before.ref == 0 and self.children[parent] == 1:
            cached = self._policies[before.policy]
            cached.leaves.remove(before)
            cached.interior.append(before)

    def changes(self) -> tuple[list[bytes], list[bytes]]:
        """Hashes registered and unregistered since the last call. The first call returns all registered hashes.

        Changes accumulate from the first call on, so a caller must continue to call.
        """
        changed = self.by_hash.keys() if self._changed is None else self._changed
        known = [key for key in changed if key in self.by_hash]
        forgotten = [key for key in changed if key not in self.by_hash]
        self._changed = set()
        return known, forgotten

    def _evict(self) -> Block:
        block = self._first_to_expire([cached.leaves for cached in self._policies])
        if block is None:
            # Only blocks remain whose children are all held: sequences computed the same chain concurrently.
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
        if key is None:
            raise PoolError(f"block {block.id} is listed as cached without a hash")
        del self.by_hash[key]
        if self._changed is not None:
            self._changed.add(key)
        block.hash = block.parent = None
        block.policy, block.expires = 0, 0.0
        if parent is None:
            return
        left = self.children[parent] - 1
        if left:
            self.children[parent] = left
            return
        del self.children[parent]
        before = self.by_hash.get(parent)
        if before is not None and before.ref == 0:
            cached = self._policies[before.policy]
            cached.interior.remove(before)
            # If it was released together with its child, it is evicted next; if it was used since, it counts as recent.
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
        """Check all invariants against the blocks that sequences hold. Raises `PoolError` with the difference."""
        refs = [0] * len(self.blocks)
        for block_ids in held:
            for i in block_ids:
                refs[i] += 1
        children: dict[bytes, int] = {}
        for block in self.blocks:
            if block.ref != refs[block.id]:
                raise PoolError(f"block {block.id} has ref {block.ref}, {refs[block.id]} sequences hold it")
            if block.hash is not None and self.by_hash.get(block.hash) is not block:
                raise PoolError(f"block {block.id} has a hash that finds another block")
            if block.parent is not None:
                children[block.parent] = children.get(block.parent, 0) + 1
        registered = sum(block.hash is not None for block in self.blocks)
        if children != self.children or len(self.by_hash) != registered:
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
