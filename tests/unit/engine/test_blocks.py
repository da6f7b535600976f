"""The block pool: property tests against a plain model of what it promises."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.tiers import scaled

from octavo_inference.core.block_pool import BlockPool, PoolError, Retention
from octavo_inference.engine.kv_events import KvEventLog
from octavo_protocol.hashing import KEY_BYTES, block_hash, keys, root_hash

BLOCKS = 12
ROOT = root_hash("model")


class PoolMachine(RuleBasedStateMachine):
    """Sequences over a tiny alphabet come, share prefixes, grow and go, as the scheduler makes them."""

    def __init__(self) -> None:
        super().__init__()
        # One policy keeps few blocks for a short time, the other all for a long one.
        self.pool = BlockPool(BLOCKS, [Retention(5.0, 2), Retention(50.0, BLOCKS)])
        self.now = 0.0
        self.until: dict[int, float] = {}
        self.held: list[list[int]] = []
        self.content: dict[int, tuple[int, ...]] = {}
        # Gateways that ask the log in any rhythm: one that asks too seldom for so few changes is sent everything.
        self.log = KvEventLog(1000, limit=6)
        self.told: set[bytes] = set()
        self.readers = [(0, set[bytes]()) for _ in range(3)]

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def start(self, tokens: list[int]) -> None:
        hashes = chain(tokens)
        hits = self.pool.match(hashes, self.now)
        # What is found is really the same beginning, and held or not yet expired.
        in_use = {block for blocks in self.held for block in blocks}
        for i, block in enumerate(hits):
            assert self.content[block] == tuple(tokens[: i + 1])
            assert block in in_use or self.until[block] > self.now
        need = len(tokens) - len(hits)
        if need + self.pool.idle(hits) > self.pool.available:
            return
        self.pool.acquire(hits)
        fresh = self.pool.allocate(need)
        assert fresh is not None
        in_use = {block for blocks in self.held for block in blocks} | set(hits)
        assert not in_use & set(fresh), "an allocated block was still held"
        blocks = hits + fresh
        for i in range(len(hits), len(tokens)):
            self.content[blocks[i]] = tuple(tokens[: i + 1])
            self.until[blocks[i]] = 0.0
            self.pool.register(blocks[i], hashes[i], hashes[i - 1] if i else ROOT)
        self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sampled_from(self.held))
        self.pool.acquire(blocks)
        self.held.append(list(blocks))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), policy=st.integers(0, 1))
    def stop(self, data: st.DataObject, policy: int) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        blocks = self.held.pop(index)
        self.pool.release(blocks, policy, self.now)
        for block in blocks:
            self.until[block] = max(self.until.get(block, 0.0), self.now + (5.0, 50.0)[policy])

    @rule(seconds=st.sampled_from([1.0, 4.0, 30.0]), freed=st.booleans())
    def wait(self, seconds: float, *, freed: bool) -> None:
        self.now += seconds
        if freed:
            self.pool.expire(self.now)

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def forget(self, tokens: list[int]) -> None:
        self.pool.forget(chain(tokens))
        assert self.pool.match(chain(tokens), self.now) == []

    @rule()
    def reset(self) -> None:
        self.pool.reset()
        assert self.pool.cached == 0

    @rule(count=st.integers(1, BLOCKS + 1))
    def take_all_or_nothing(self, count: int) -> None:
        before = self.pool.available
        taken = self.pool.allocate(count)
        assert (taken is None) == (count > before)
        if taken is None:
            assert self.pool.available == before
        else:
            assert len(set(taken)) == count
            self.held.append(taken)

    @rule()
    def end_turn(self) -> None:
        known, forgotten = self.pool.changes()
        self.log.apply(*(b"".join(key[:KEY_BYTES] for key in told) for told in (known, forgotten)))
        self.told = {key[:KEY_BYTES] for key in self.pool.by_hash}

    @rule(reader=st.integers(0, 2))
    def ask(self, reader: int) -> None:
        sequence, knows = self.readers[reader]
        delta = self.log.since(sequence)
        added, removed = set(keys(delta.added)), set(keys(delta.removed))
        assert not added & removed
        knows = added if delta.reset else (knows | added) - removed
        assert knows == self.told
        assert len(added) + len(removed) <= max(6, len(self.told))
        self.readers[reader] = delta.sequence, knows

    @invariant()
    def invariants_hold(self) -> None:
        self.pool.check(self.held)
        assert self.pool.pinned == len({block for blocks in self.held for block in blocks})


def chain(tokens: list[int]) -> list[bytes]:
    hashes: list[bytes] = []
    for token in tokens:
        hashes.append(block_hash(hashes[-1] if hashes else ROOT, [token]))
    return hashes


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=scaled(30), stateful_step_count=30, deadline=None)


def run_through(pool: BlockPool, tokens: list[int]) -> list[int]:
    """A sequence of these one-token blocks, computed and gone again."""
    hashes = chain(tokens)
    hits = pool.match(hashes)
    pool.acquire(hits)
    blocks = hits + (pool.allocate(len(tokens) - len(hits)) or [])
    for i in range(len(hits), len(tokens)):
        pool.register(blocks[i], hashes[i], hashes[i - 1] if i else ROOT)
    pool.release(blocks)
    return blocks


def test_a_chain_is_evicted_from_its_end() -> None:
    pool = BlockPool(4)
    blocks = run_through(pool, [1, 2, 3, 4])
    for left in (3, 2, 1, 0):
        [taken] = pool.allocate(1) or []
        assert taken == blocks[left]
        assert len(pool.match(chain([1, 2, 3, 4]))) == left


def test_least_recently_used_goes_first_and_use_renews() -> None:
    pool = BlockPool(4)
    run_through(pool, [1, 2])
    run_through(pool, [3, 4])
    run_through(pool, [1, 2])
    pool.allocate(2)
    assert len(pool.match(chain([1, 2]))) == 2
    assert pool.match(chain([3, 4])) == []


def test_a_shared_beginning_outlives_its_continuations() -> None:
    pool = BlockPool(4)
    run_through(pool, [1, 2])
    run_through(pool, [1, 3])
    run_through(pool, [1, 4])
    pool.allocate(3)
    assert len(pool.match(chain([1, 9]))) == 1


def test_free_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(6)
    run_through(pool, [1, 2, 3])
    pool.allocate(3)
    assert len(pool.match(chain([1, 2, 3]))) == 3
    assert pool.cached == 3, "none was evicted"


def test_a_chain_computed_twice_at_once_keeps_working() -> None:
    pool = BlockPool(4)
    hashes = chain([1, 2])
    first, second = pool.allocate(1) or [], pool.allocate(2) or []
    pool.register(first[0], hashes[0], ROOT)
    pool.register(second[0], hashes[0], ROOT)  # not known under its hash: the first one is
    pool.register(second[1], hashes[1], hashes[0])
    pool.release(first)
    pool.check([second])
    assert pool.match(hashes) == [first[0], second[1]]
    # Only blocks that have children are left to evict.
    assert pool.allocate(2) is not None
    assert pool.match(hashes) == []


def test_releasing_what_nobody_holds_is_a_bug_and_says_so() -> None:
    pool = BlockPool(2)
    with pytest.raises(PoolError, match="block 1 is released but nobody holds it"):
        pool.release([1])


def test_check_finds_a_leak() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(PoolError, match="has ref 1, 0 sequences hold it"):
        pool.check([])


def test_what_has_expired_is_not_found_even_before_it_is_freed() -> None:
    pool = BlockPool(4, [Retention(10.0, 4), Retention(100.0, 4)])
    hashes = chain([1, 2])
    blocks = pool.allocate(2) or []
    pool.register(blocks[0], hashes[0], ROOT)
    pool.register(blocks[1], hashes[1], hashes[0])
    pool.release(blocks, 0, now=0.0)
    assert pool.match(hashes, now=9.0) == blocks
    assert pool.match(hashes, now=10.0) == []
    assert pool.cached == 2
    pool.expire(10.0)
    assert pool.cached == 0
    pool.check([])


def test_a_block_lives_as_long_as_anybody_promised_it() -> None:
    pool = BlockPool(4, [Retention(10.0, 4), Retention(100.0, 4)])
    [block] = pool.allocate(1) or []
    [key] = chain([1])
    pool.register(block, key, ROOT)
    pool.release([block], 1, now=0.0)
    pool.acquire([block])
    pool.release([block], 0, now=5.0)
    assert pool.match([key], now=99.0) == [block]
    assert pool.match([key], now=100.0) == []


def test_a_forgotten_block_is_free_or_stays_with_its_holder() -> None:
    pool = BlockPool(4)
    held, idle = run_through(pool, [1, 2])
    pool.acquire([held])
    pool.forget(chain([1, 2, 3]))
    pool.check([[held]])
    assert pool.match(chain([1, 2])) == []
    assert (pool.cached, pool.free.size) == (0, 3)
    assert idle != held
