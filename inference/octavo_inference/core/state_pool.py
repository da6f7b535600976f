"""The pool of states: which slots hold snapshots for the prefix cache, found by block hash, and which are free.

State layers keep one state per sequence, and only the newest: a prefix can be continued only from a copy of the state
at its end. Slots 0..rows-1 belong to the rows of running sequences. Every slot above is in exactly one condition:

    free      no key
    pending   reserved for the key of a copy that is planned or in flight; no match finds it
    cached    its key finds it, until it expires or its slot is needed

Nothing holds a snapshot: a hit copies it to a row, in launch order with what later overwrites the slot. So eviction has
a single rule: the snapshot that expires first. With one policy, this is LRU. All operations are O(1) per snapshot.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo_inference.core.block_pool import PoolError, Retention


@dataclass(slots=True)
class _Snapshot:
    slot: int
    expires: float
    used: bool = False


class StatePool:
    """Slots `rows` to `slots` - 1 hold snapshots. `retentions` are the policies of `BlockPool`, in snapshots."""

    def __init__(self, rows: int, slots: int, retentions: Sequence[Retention] = ()) -> None:
        if slots < rows:
            raise PoolError(f"{slots} slots for the states of {rows} rows")
        self.rows = rows
        self.snapshots = slots - rows
        self._retentions = retentions or (Retention(math.inf, self.snapshots),)
        self._free = list(range(slots - 1, rows - 1, -1))
        # None: forgotten since the reservation.
        self._pending: dict[int, bytes | None] = {}
        # Of each policy, in the order of their expiry.
        self._cached: list[dict[bytes, _Snapshot]] = [{} for _ in self._retentions]
        self._policy_of: dict[bytes, int] = {}

    @property
    def cached(self) -> int:
        """Number of snapshots that a match can find."""
        return len(self._policy_of)

    @property
    def pending(self) -> int:
        """Number of slots reserved for copies that are not known to be complete."""
        return len(self._pending)

    def match(self, hashes: Sequence[bytes], now: float = 0.0) -> int:
        """How many of these blocks, from the start of a hash chain, end at the last border that has a snapshot."""
        for count in range(len(hashes), 0, -1):
            policy = self._policy_of.get(hashes[count - 1])
            if policy is not None and self._cached[policy][hashes[count - 1]].expires > now:
                return count
        return 0

    def use(self, key: bytes, policy: int = 0, now: float = 0.0) -> int:
        """The slot of a cached snapshot, for a copy. It is kept as if released under `policy`, if that is longer."""
        snapshot = self._cached[self._policy_of[key]][key]
        snapshot.used = True
        expires = now + self._retentions[policy].seconds
        # The policy with the latest expiry wins.
        if expires >= snapshot.expires:
            del self._cached[self._policy_of[key]][key]
            snapshot.expires = expires
            self._insert(key, snapshot, policy)
        return snapshot.slot

    def reserve(self, key: bytes) -> int | None:
        """A slot for a snapshot, to `commit` or `cancel`. None if the key has one already, or no slot can be taken."""
        if key in self._policy_of or key in self._pending.values():
            return None
        if not self._free and not self._evict():
            return None
        slot = self._free.pop()
        self._pending[slot] = key
        return slot

    def commit(self, slot: int, policy: int = 0, now: float = 0.0) -> None:
        """The copy to a reserved slot is complete: matches find it, unless it was forgotten since."""
        key = self._pending.pop(slot)
        if key is None:
            self._free.append(slot)
            return
        self._insert(key, _Snapshot(slot, now + self._retentions[policy].seconds), policy)

    def cancel(self, slot: int) -> None:
        """The copy to a reserved slot did not happen, or copied an invalid state."""
        del self._pending[slot]
        self._free.append(slot)

    def replace(self, key: bytes) -> None:
        """Free a snapshot that a newer one of the same sequence replaces, unless a match has used it."""
        policy = self._policy_of.get(key)
        if policy is not None and not self._cached[policy][key].used:
            self._drop(key)

    def expire(self, now: float) -> None:
        """Free expired snapshots."""
        for cached in self._cached:
            while cached and next(iter(cached.values())).expires <= now:
                self._drop(next(iter(cached)))

    def forget(self, keys: Iterable[bytes]) -> None:
        """Free these snapshots, and those of these keys that are pending when they are committed."""
        forgotten = set(keys)
        for key in forgotten & self._policy_of.keys():
            self._drop(key)
        for slot, pending in self._pending.items():
            if pending in forgotten:
                self._pending[slot] = None

    def reset(self) -> None:
        """Forget all snapshots."""
        self.forget([*self._policy_of, *(key for key in self._pending.values() if key is not None)])

    def check(self) -> None:
        """Check all invariants. Raises `PoolError` with the difference."""
        cached = [snapshot.slot for snapshots in self._cached for snapshot in snapshots.values()]
        found = sorted([*self._free, *self._pending, *cached])
        if found != list(range(self.rows, self.rows + self.snapshots)):
            raise PoolError(f"slots of states are not each free, pending or cached: {found}")
        expected = {key: policy for policy, snapshots in enumerate(self._cached) for key in snapshots}
        if expected != self._policy_of:
            raise PoolError("keys of snapshots do not match the policies' lists")
        if expected.keys() & self._pending.values():
            raise PoolError("a pending snapshot has the key of a cached one")
        for policy, snapshots in enumerate(self._cached):
            expiries = [snapshot.expires for snapshot in snapshots.values()]
            if expiries != sorted(expiries) or len(snapshots) > self._retentions[policy].blocks:
                raise PoolError(f"policy {policy} keeps {len(snapshots)} snapshots, expiring at {expiries}")

    def _insert(self, key: bytes, snapshot: _Snapshot, policy: int) -> None:
        self._policy_of[key] = policy
        cached = self._cached[policy]
        cached[key] = snapshot
        if len(cached) > self._retentions[policy].blocks:
            self._drop(next(iter(cached)))

    def _evict(self) -> bool:
        """Free the snapshot that expires first. Returns whether there was one."""
        heads = [next(iter(cached.items())) for cached in self._cached if cached]
        if not heads:
            return False
        self._drop(min(heads, key=lambda head: head[1].expires)[0])
        return True

    def _drop(self, key: bytes) -> None:
        self._free.append(self._cached[self._policy_of.pop(key)].pop(key).slot)
