"""Divides the memory of the KV pool between blocks and the states of sequences, for engine and operator. Pure."""

from __future__ import annotations

from dataclasses import dataclass

# Rows that nobody asked for must not take the room of the prompts that they would compute.
_ROWS_SHARE = 2
# Of what the rows leave. A state is as large as the KV of thousands of tokens.
_SNAPSHOT_SHARE = 4
# A few conversations per row are enough to continue those that come back soon.
_SNAPSHOTS_PER_ROW = 4


@dataclass(frozen=True, slots=True)
class StateSlots:
    """Slots for the states of running sequences, one for each of `rows`, and of `snapshots` for the prefix cache."""

    rows: int
    snapshots: int
    state_bytes: int

    @property
    def slots(self) -> int:
        """Number of all slots; 0 for models without state layers."""
        return self.rows + self.snapshots if self.state_bytes else 0

    @property
    def nbytes(self) -> int:
        """Memory of all slots."""
        return self.slots * self.state_bytes


def state_slots(
    memory: int, rows: int, state_bytes: int, *, rows_given: bool, snapshots: int | None, caching: bool
) -> StateSlots:
    """The slots in a pool of `memory` bytes, for states of `state_bytes` per sequence.

    Without `rows_given`, the states of `rows` sequences take at most half of the memory, or fewer sequences run. With
    `snapshots`, there are so many; whether they fit is the caller's to check.
    """
    if not state_bytes:
        return StateSlots(rows, 0, 0)
    if not rows_given:
        rows = max(1, min(rows, memory // _ROWS_SHARE // state_bytes))
    if not caching:
        return StateSlots(rows, 0, state_bytes)
    if snapshots is None:
        left = max(0, memory - rows * state_bytes)
        snapshots = min(_SNAPSHOTS_PER_ROW * rows, left // _SNAPSHOT_SHARE // state_bytes)
    return StateSlots(rows, snapshots, state_bytes)


def most_useful(rows: int, state_bytes: int, snapshots: int | None) -> int:
    """Bytes of states that a pool can use, at most."""
    return state_bytes * (rows + (_SNAPSHOTS_PER_ROW * rows if snapshots is None else snapshots))
