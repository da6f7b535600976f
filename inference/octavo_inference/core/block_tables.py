"""The block tables of sequences over one pool: one table for each group of layers (`models.layer_groups`).

    tokens          0    4    8    12   16   20   24
    full group      [ 7][ 2][ 9][11][ 5][ 3]        blocks of the whole prompt, from its start on
    window group    [ *][ *][ *][12][ 4]            `freed` are 3: behind the window, free for others or cached
                                  computed: 18

Tables of full groups get the blocks of a prompt when it starts, those of windows get them chunk by chunk. From the
first generated token on, all tables have the same length.

The key of a block in the prefix cache is the hash of its tokens, with the number of the group behind it where it is not
the first. A prefix of n tokens is found if full groups have all blocks before n, and windows those that token n needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass

from octavo_common.failpoints import Failpoints
from octavo_inference.core.block_pool import BlockPool, PoolError
from octavo_inference.core.input_batch import InputBatch
from octavo_inference.core.sequence import Sequence
from octavo_inference.models.layer_groups import LayerGroup
from octavo_protocol.hashing import DIGEST_BYTES
from octavo_protocol.kv_tables import columns_held


@dataclass(frozen=True, slots=True)
class Hit:
    """A prefix in the cache: its length in blocks, and the last of them in each group, as far back as it needs them."""

    columns: int
    blocks: List[list[int]]


class BlockTables:
    """Allocates and frees the blocks of sequences, and finds them by hash.

    `chunk`: most tokens from the last one that is certain to be in the pool to the end of a step.
    """

    def __init__(
        self,
        pool: BlockPool,
        rows: InputBatch,
        groups: tuple[LayerGroup, ...],
        block_size: int,
        *,
        chunk: int,
        failpoints: Failpoints,
    ) -> None:
        self.pool = pool
        self.groups = groups
        self.count = len(groups)
        self.block_size = block_size
        self._rows = rows
        self._chunk = chunk
        self._failpoints = failpoints
        self._windows = [(number, group) for number, group in enumerate(groups) if not group.is_full]
        self._full = [number for number, group in enumerate(groups) if group.is_full]
        self.frees = bool(self._windows)
        self._nothing = Hit(0, [[] for _ in groups])

    def columns(self, tokens: int) -> int:
        """Blocks of one group that cover this many tokens."""
        return -(-tokens // self.block_size)

    def match(self, hashes: List[bytes], now: float) -> Hit:
        """The longest prefix of a hash chain that is in the cache. `start` adds the references."""
        if not self.frees and self.count == 1:
            found = self.pool.match(hashes, now)
            return Hit(len(found), [found])
        count = min([len(self.pool.match(_keys(hashes, n), now)) for n in self._full], default=len(hashes))
        while count and (missing := self._missing(hashes, count, now)) is not None:
            count = missing
        if count == 0:
            return self._nothing
        first = [group.first_needed(count * self.block_size) // self.block_size for group in self.groups]
        return Hit(count, [self.pool.match(_keys(hashes[f:count], n), now) for n, f in enumerate(first)])

    def _missing(self, hashes: List[bytes], count: int, now: float) -> int | None:
        """The last block that a window needs for a prefix of `count` blocks and that is not in the cache."""
        for number, group in self._windows:
            first = group.first_needed(count * self.block_size) // self.block_size
            for at in range(count - 1, first - 1, -1):
                if not self.pool.match([_key(hashes[at], number)], now):
                    return at
        return None

    def promised(self, sequence: Sequence) -> int:
        """Blocks that the windows of a running prompt may need in addition to those they have."""
        return sum(
            max(0, self._most(group, sequence.total, sequence.freed[n]) - len(sequence.blocks[n]) + sequence.freed[n])
            for n, group in self._windows
        )

    def _most(self, group: LayerGroup, tokens: int, freed: int) -> int:
        return columns_held(group.reach, tokens - freed * self.block_size, self._chunk, self.block_size)

    def needed(self, sequence: Sequence, hit: Hit, computed: int) -> int:
        """Available blocks that a waiting sequence needs to compute all of its tokens, `computed` being there."""
        full = [hit.blocks[n] for n in self._full]
        need = len(full) * self.columns(sequence.total) - sum(len(blocks) - self.pool.idle(blocks) for blocks in full)
        # Blocks of a window that others hold count too: they do not become available when the window has passed.
        return need + sum(
            self._most(group, sequence.total, group.first_needed(computed) // self.block_size)
            for _, group in self._windows
        )

    def fitting(self, sequence: Sequence, hit: Hit, computed: int, take: int) -> int:
        """How many of `take` tokens a waiting sequence can compute at once with the blocks that are available."""
        idle = sum(self.pool.idle(blocks) for blocks in hit.blocks)
        while take and sum(map(len, self._new(sequence, hit, computed, take))) + idle > self.pool.available:
            take //= 2
        return take

    def start(self, sequence: Sequence, hit: Hit, computed: int, take: int, now: float) -> None:
        """Give a waiting sequence its hits and the blocks to compute `take` tokens after `computed`."""
        for blocks in hit.blocks:
            self.pool.acquire(blocks)
        new = self._new(sequence, hit, computed, take)
        try:
            blocks = self._allocate(sum(map(len, new)))
        except BaseException:
            for held in hit.blocks:
                self.pool.release(held, sequence.policy, now)
            raise
        sequence.freed = [columns.start - len(held) for columns, held in zip(new, hit.blocks, strict=True)]
        sequence.blocks, taken = [], 0
        for freed, columns, held in zip(sequence.freed, new, hit.blocks, strict=True):
            sequence.blocks.append([0] * freed + held + blocks[taken : taken + len(columns)])
            taken += len(columns)
        sequence.registered = hit.columns
        self._set_release(sequence)

    def _new(self, sequence: Sequence, hit: Hit, computed: int, take: int) -> list[range]:
        """The columns of each table that `start` allocates."""
        whole, end = self.columns(sequence.total), self.columns(computed + take)
        return [
            range(hit.columns, whole)
            if group.is_full
            else range(max(hit.columns, group.first_needed(computed) // self.block_size), end)
            for group in self.groups
        ]

    def cover(self, sequence: Sequence, take: int) -> int:
        """Give the windows of a running prompt the blocks of its next `take` tokens; returns for how many there are."""
        windows = [number for number, _ in self._windows]
        have = len(sequence.blocks[windows[0]])  # in all windows
        add = self.columns(sequence.computed + take) - have
        if add <= 0:
            return take
        add = min(add, self.pool.available // len(windows))
        self._append(sequence, windows, have + add)
        return min(take, (have + add) * self.block_size - sequence.computed)

    def extend(self, sequence: Sequence, tokens: int) -> None:
        """Give a running sequence the blocks of its first `tokens`, which are known to be available."""
        self._append(sequence, range(self.count), self.columns(tokens))

    def _append(self, sequence: Sequence, tables: Iterable[int], columns: int) -> None:
        """Append blocks to some tables, up to `columns` of them."""
        missing = [(number, columns - len(sequence.blocks[number])) for number in tables]
        blocks = self._allocate(sum(max(0, count) for _, count in missing))
        for number, count in missing:
            if count > 0:
                table = sequence.blocks[number]
                self._rows.set_blocks(sequence, number, len(table), blocks[-count:])
                table += blocks[-count:]
                del blocks[-count:]
        self.set_capacity(sequence)

    def set_capacity(self, sequence: Sequence) -> None:
        """Set for how many tokens a sequence has blocks in all tables."""
        sequence.capacity = min([len(table) for table in sequence.blocks]) * self.block_size

    def trim(self, sequence: Sequence, tokens: int) -> None:
        """Free the blocks of a running sequence beyond this many tokens."""
        used = self.columns(tokens)
        if used < len(sequence.blocks[0]):
            for table in sequence.blocks:
                self.pool.release(table[used:])
                del table[used:]
            self.set_capacity(sequence)

    def tail_shared(self, sequence: Sequence) -> bool:
        """True if siblings still share the partial last blocks, so that they must be copied before a write."""
        return sequence.tail_shared and self.pool.shared(sequence.blocks[0][-1])

    def copy_tail(self, sequence: Sequence) -> list[tuple[int, int]]:
        """Replace the shared last blocks of a sequence: pairs of blocks to copy."""
        pairs = []
        for number, own in enumerate(self._allocate(self.count)):
            table = sequence.blocks[number]
            pairs.append((table[-1], own))
            self.pool.release([table[-1]])
            table[-1] = own
            self._rows.set_blocks(sequence, number, len(table) - 1, [own])
        return pairs

    def share(self, leader: Sequence, fork: Sequence) -> None:
        """Let a sibling hold the blocks of its leader."""
        fork.blocks = [list(table) for table in leader.blocks]
        fork.freed = list(leader.freed)
        fork.release_at = leader.release_at
        for table, freed in zip(fork.blocks, fork.freed, strict=True):
            self.pool.acquire(table[freed:])

    def release_passed(self, running: List[Sequence], now: float) -> None:
        """Free the blocks that no later token of a running sequence needs."""
        if not self.frees:
            return
        for sequence in running:
            if sequence.confirmed < sequence.release_at:
                continue
            for number, group in self._windows:
                first, freed = group.first_needed(sequence.confirmed) // self.block_size, sequence.freed[number]
                if first > freed:
                    self.pool.release(sequence.blocks[number][freed:first], sequence.policy, now)
                    sequence.freed[number] = first
            self._set_release(sequence)

    def _set_release(self, sequence: Sequence) -> None:
        if self.frees:
            sequence.release_at = min(
                group.passed((sequence.freed[n] + 1) * self.block_size) for n, group in self._windows
            )

    def held(self, sequence: Sequence) -> list[int]:
        """The blocks of a sequence."""
        return [block for table, freed in zip(sequence.blocks, sequence.freed, strict=True) for block in table[freed:]]

    def free(self, sequence: Sequence, now: float) -> None:
        """Free all blocks of a sequence."""
        for table, freed in zip(sequence.blocks, sequence.freed, strict=True):
            self.pool.release(table[freed:] if freed else table, sequence.policy, now)
        sequence.blocks, sequence.freed = [], []
        sequence.capacity = 0

    def kept(self, tokens: int) -> int:
        """Number of blocks that a sequence needs to continue after this many tokens."""
        if not self.frees:
            return self.count * self.columns(tokens)
        return sum(self.columns(tokens) - group.first_needed(tokens) // self.block_size for group in self.groups)

    def saved(self, sequence: Sequence, tokens: int, after: int = 0) -> list[int]:
        """The blocks that a sequence needs to continue after `tokens`, those of each table from column `after` on."""
        used = self.columns(tokens)
        return [
            block
            for group, table in zip(self.groups, sequence.blocks, strict=True)
            for block in table[max(after, group.first_needed(tokens) // self.block_size) : used]
        ]

    def register(self, sequence: Sequence, full: int) -> None:
        """Register the first `full` blocks of each table that are not registered yet, by the sequence's hashes."""
        hashes = sequence.hashes
        for number, group in enumerate(self.groups):
            table = sequence.blocks[number]
            for at in range(max(sequence.registered, sequence.freed[number]), full):
                # A window finds its last blocks without those before, so none of them is an ancestor of another.
                before = None if not group.is_full else hashes[at - 1] if at else sequence.root
                parent = None if before is None else _key(before, number)
                self.pool.register(table[at], _key(hashes[at], number), parent)
        sequence.registered = full

    def forget(self, sequence: Sequence) -> None:
        """Unregister the blocks of a sequence, those it has freed included."""
        for number in range(self.count):
            self.pool.forget([_key(each, number) for each in sequence.hashes[: sequence.registered]])

    def check(self, running: Iterable[Sequence]) -> None:
        """Check the pool against the tables. Raises `PoolError`."""
        running = list(running)
        self.pool.check([self.held(sequence) for sequence in running])
        for sequence in running:
            for group, table, freed in zip(self.groups, sequence.blocks, sequence.freed, strict=True):
                needed = group.first_needed(sequence.confirmed) // self.block_size
                if freed > needed or len(table) < self.columns(sequence.computed):
                    raise PoolError(
                        f"a sequence at token {sequence.computed} has blocks {freed} to {len(table)} of a group that "
                        f"needs {needed} to {self.columns(sequence.computed)}"
                    )

    def _allocate(self, count: int) -> list[int]:
        """Allocate blocks that are known to be available."""
        self._failpoints.hit("pool.allocate")
        blocks = self.pool.allocate(count)
        if blocks is None:
            raise PoolError(f"{count} blocks were thought to be available, {self.pool.available} are")
        return blocks


def published(key: bytes) -> bool:
    """True for keys of the first group: the others are known inside of a replica alone."""
    return len(key) == DIGEST_BYTES


def _key(block_hash: bytes, group: int) -> bytes:
    return block_hash + bytes([group]) if group else block_hash


def _keys(hashes: Iterable[bytes], group: int) -> Iterable[bytes]:
    return (_key(each, group) for each in hashes) if group else hashes
