"""Whether pods have room for one more request: KV tokens and sequences, in use and still to come. Pure.

A request takes its prompt now and its output as it grows; a pod whose running requests fill it when they are done is
full. What a pod reports is what its pool really holds (a prefix that many share is held once), so it is the basis; what
was sent since is added, what finished since taken off, and what the running ones will likely still generate added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

# Pods are filled up to this share of their pool, so that a wrong guess of the output does not make them preempt.
FILL_SHARE = 0.9
# Requests sent to a pod that has not reported yet: it is not known what it can hold.
BLIND = 4


class Room(NamedTuple):
    """One pod. `pool`, `used`: KV tokens, `used` with the growth to come; `rows`: sequences there, running or waiting.

    `pool` None: not known, and `max_rows` says how many it gets until it is. `due`: other gateways fill it, and this
    one has less than its share of what runs there.
    """

    pool: int | None
    used: float
    rows: int
    max_rows: int
    due: bool = False


# A pod that never says what it holds: its own queue has to.
ANY = Room(None, 0.0, 0, 1)


def largest(rooms: Iterable[Room]) -> float:
    """The most tokens that any of the pods takes; 0 while none has said."""
    return max((FILL_SHARE * room.pool for room in rooms if room.pool is not None), default=0.0)


def roomy(rooms: Sequence[Room], tokens: float, matched: Sequence[int], most: float) -> list[bool]:
    """Which pods a request of `tokens`, its output included, may be sent to now; `matched` of them each has cached.

    `most` is what the `largest` pod takes, of all that there are.
    One that is larger than every pod may go anywhere: the pod's own answer says so, and nobody waits behind it. A pod
    where nothing runs always has room. Where gateways fill a pod together, each sees a place of its own become free at
    once and those of others only in the next report; one that had none there would never get any, but for `due`.
    """
    return [_fits(room, tokens, cached, most) for room, cached in zip(rooms, matched, strict=True)]


def _fits(room: Room, tokens: float, cached: int, most: float) -> bool:
    if room.due or not room.rows:
        return True
    if room.rows >= room.max_rows:
        return False
    return room.pool is None or tokens > most or room.used + tokens - cached <= FILL_SHARE * room.pool
