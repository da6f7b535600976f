"""An oracle: knows all future requests with their lengths, and starts pods in time for them.

No autoscaler can know the future. The oracle is a reference for perfect knowledge, as a fixed number is for none.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from math import ceil

from octavo_operator.autoscale.types import Observation
from octavo_simulator.scenario import Controller, Promise, ReplicaTarget
from octavo_simulator.steptime import PodProfile
from octavo_simulator.trace import Trace, TraceRequest

TICK_SECONDS = 10.0


def work(request: TraceRequest, profile: PodProfile, promise: Promise) -> float:
    """Pod-seconds of a request at the TPOT objective.

    They are the cost of its prompt, and for each step the cost of its row and context. All rows that fit share the
    fixed cost of a step equally.
    """
    resident = request.prompt + request.output / 2
    prompt = profile.prefill * max(1, request.prompt - (request.shared if request.prefix >= 0 else 0))
    row = profile.row + profile.context * resident
    share = prompt / request.output
    rows = min(
        profile.max_running,
        max(1.0, (0.85 * promise.tpot - profile.base) / (row + share)),
        max(1.0, 0.9 * profile.pool_tokens / resident),
    )
    return prompt + request.output * (row + profile.base / rows)


def oracle(trace: Trace, profile: PodProfile, promise: Promise, busy: float, window: float = 60.0) -> Controller:
    """Pods for the busiest `window` until a pod started now would be ready, at utilization `busy`."""
    times = [request.at for request in trace.requests]
    sums = [0.0, *accumulate(work(request, profile, promise) for request in trace.requests)]
    ahead = 2.0 * profile.start

    def control(_: Observation, now: float) -> ReplicaTarget:
        most, at = 0.0, now - window / 2
        while at <= now + ahead:
            inside = sums[bisect_left(times, at + window)] - sums[bisect_left(times, at)]
            most = max(most, inside / window)
            at += window / 4
        return ReplicaTarget(max(1, ceil(most / busy)), TICK_SECONDS, "")

    return control
