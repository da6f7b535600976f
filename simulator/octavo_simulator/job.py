"""A request on its way through the simulation."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from octavo_simulator.trace import TraceRequest

Outcome = Literal["", "finished", "rejected", "timeout", "broken"]


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request on its way. Times are seconds of the simulation; `first`: of the first token, `ended`: of the outcome.

    `total`: tokens known (prompt and answer so far), `computed`: tokens with KV while it is not decoding; a decoding
    one's follow from the pod's step count (`base`). `attached`: blocks held through its chain. `held`: seconds it
    waited in a gateway; `recomputed`: tokens computed again because it was preempted.
    """

    number: int
    request: TraceRequest
    arrived: float
    deadline: float = inf
    first: float = inf
    ended: float = inf
    outcome: Outcome = ""
    held: float = 0.0
    hit: int = 0
    total: int = 0
    made: int = 0
    computed: int = 0
    reached: int = 0
    recomputed: int = 0
    attached: int = 0
    uncached: int = 0
    base: int = 0
    finish_at: int = -1
