"""A request in the simulation, with its progress."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from octavo_simulator.trace import TraceRequest

Outcome = Literal["", "finished", "rejected", "timeout", "broken"]


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request in progress. Times are simulated seconds; `first`: of the first token, `ended`: of the outcome.

    `total`: prompt and output tokens so far. `computed`: tokens with KV while the request is not decoding; for a
    decoding one they follow from the pod's step count (`base`). `attached`: blocks held through its chain. `held`:
    seconds in a gateway's hold queue; `recomputed`: tokens computed again after preemption.
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
