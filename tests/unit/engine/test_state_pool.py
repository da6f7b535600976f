"""The pool of states: property tests against a plain model of what it promises."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.tiers import scaled

from octavo_inference.core.block_pool import PoolError, Retention
from octavo_inference.core.snapshot_policy import SnapshotMarks, next_snapshot
from octavo_inference.core.state_pool import StatePool

ROWS, SLOTS = 3, 8
SECONDS = 5.0, 50.0
KEYS = [bytes([i]) for i in range(9)]


class PoolMachine(RuleBasedStateMachine):
    """Snapshots are reserved, complete or fail, are used, expire and are forgotten."""

    def __init__(self) -> None:
        super().__init__()
        # One policy keeps few snapshots for a short time, the other all for a long one.
        self.pool = StatePool(ROWS, SLOTS, [Retention(SECONDS[0], 2), Retention(SECONDS[1], SLOTS - ROWS)])
        self.now = 0.0
        self.content: dict[int, bytes] = {}
        self.until: dict[bytes, float] = {}
        self.pending: dict[int, bytes | None] = {}

    @rule(key=st.sampled_from(KEYS))
    def reserve(self, key: bytes) -> None:
        known = self.pool.match([key], -1.0) == 1 or key in self.pending.values()
        slot = self.pool.reserve(key)
        if slot is None:
            assert known or len(self.pending) == SLOTS - ROWS
            return
        assert not known
        assert ROWS <= slot < SLOTS
        assert slot not in self.pending, "a slot that a copy is on its way to"
        self.content[slot] = key
        self.pending[slot] = key

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), policy=st.integers(0, 1), valid=st.booleans())
    def end(self, data: st.DataObject, policy: int, *, valid: bool) -> None:
        slot = data.draw(st.sampled_from(sorted(self.pending)))
        key = self.pending.pop(slot)
        if not valid:
            self.pool.cancel(slot)
            return
        self.pool.commit(slot, policy, self.now)
        if key is not None:
            self.until[key] = self.now + SECONDS[policy]

    @rule(chain=st.lists(st.sampled_from(KEYS), max_size=4, unique=True), policy=st.integers(0, 1))
    def use(self, chain: list[bytes], policy: int) -> None:
        count = self.pool.match(chain, self.now)
        assert not any(self.pool.match([key], self.now) for key in chain[count:]), "not the last one"
        if count:
            key = chain[count - 1]
            assert self.until[key] > self.now
            assert self.content[self.pool.use(key, policy, self.now)] == key
            self.until[key] = max(self.until[key], self.now + SECONDS[policy])

    @rule(seconds=st.sampled_from([1.0, 4.0, 30.0]), freed=st.booleans())
    def wait(self, seconds: float, *, freed: bool) -> None:
        self.now += seconds
        if freed:
            self.pool.expire(self.now)

    @rule(keys=st.sets(st.sampled_from(KEYS)))
    def forget(self, keys: set[bytes]) -> None:
        self.pool.forget(keys)
        assert not any(self.pool.match([key], self.now) for key in keys)
        self.pending = {slot: None if key in keys else key for slot, key in self.pending.items()}

    @rule(key=st.sampled_from(KEYS))
    def replace(self, key: bytes) -> None:
        self.pool.replace(key)

    @rule()
    def reset(self) -> None:
        self.pool.reset()
        assert self.pool.cached == 0
        self.pending = dict.fromkeys(self.pending)

    @invariant()
    def is_consistent(self) -> None:
        self.pool.check()
        assert self.pool.pending == len(self.pending)
        assert self.pool.cached <= SLOTS - ROWS - len(self.pending)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=scaled(60), stateful_step_count=40, deadline=None)


def committed(pool: StatePool, *keys: bytes, now: float = 0.0) -> None:
    for key in keys:
        slot = pool.reserve(key)
        assert slot is not None
        pool.commit(slot, now=now)


def test_the_snapshot_that_was_used_last_is_evicted_last() -> None:
    pool = StatePool(1, 4, [Retention(100.0, 3)])
    for now, key in enumerate(KEYS[:3]):
        committed(pool, key, now=now)
    pool.use(KEYS[0], now=5.0)
    committed(pool, KEYS[3], now=6.0)
    assert [pool.match([key]) for key in KEYS[:4]] == [1, 0, 1, 1]


def test_a_newer_snapshot_of_the_same_answer_replaces_an_older_one_unless_it_was_used() -> None:
    pool = StatePool(1, 4)
    committed(pool, KEYS[0], KEYS[1])
    pool.use(KEYS[1])
    pool.replace(KEYS[0])
    pool.replace(KEYS[1])
    assert [pool.match([key]) for key in KEYS[:2]] == [0, 1]


def test_a_pool_without_snapshots_only_numbers_the_rows() -> None:
    pool = StatePool(4, 4)
    assert pool.reserve(KEYS[0]) is None
    pool.check()
    with pytest.raises(PoolError, match="3 slots for the states of 4 rows"):
        StatePool(4, 3)


def test_a_corrupted_pool_is_found_out() -> None:
    pool = StatePool(1, 4)
    committed(pool, KEYS[0])
    pool._free.append(2)
    with pytest.raises(PoolError, match="not each free"):
        pool.check()


@pytest.mark.parametrize(
    ("at", "total", "last", "shared", "expected"),
    [
        (0, 50, 0, 0, 48),  # the last border before the last token
        (0, 48, 0, 0, 32),  # whose last token is computed again
        (0, 20, 0, 0, 64),  # too short: the answer's first
        (0, 100, 0, 64, 64),  # where another prompt was the same
        (64, 100, 64, 64, 96),
        (80, 100, 80, 0, 128),  # a border that saves too little: the answer's
        (0, 3000, 0, 0, 1024),
        (1024, 3000, 1024, 0, 2048),
        (2048, 3000, 2048, 0, 2992),
        (2992, 3000, 2992, 0, 3072),
        (3072, 3073, 3072, 0, 3136),  # a decode
        (3100, 3101, 2992, 0, 3136),
    ],
)
def test_where_snapshots_are_left(at: int, total: int, last: int, shared: int, expected: int) -> None:
    assert next_snapshot(at, total, SnapshotMarks(latest=last, shared=shared), 16) == expected
