"""The demand in replicas: sums over the deployment divided by the capacity of one replica. Pure.

The terms complement each other. The rate is a forecast, early but possibly wrong; stock, queue and prompts are
measured, but late. Waiting requests may add only a little to the rate's replicas, because these will serve them, too.
Otherwise the queue, which grows while replicas start, would start more that are idle once they are ready.
"""

from __future__ import annotations

from math import erf, exp, inf, pi, sqrt

from octavo_operator.autoscale.arrivals import FAST_SECONDS, dispersion, forecast, sure
from octavo_operator.autoscale.estimators import cold_start
from octavo_operator.autoscale.signals import Signals
from octavo_operator.autoscale.types import Demand, Learned, ScalingSettings

# The share of the requests that may wait longer than the target.
MISSES = 0.01
_MOST_DEVIATIONS = 4.0
_HALVINGS = 30
# Extra replicas for waiting requests, beyond those for the rate: a share of them, plus one.
BACKLOG_SHARE = 0.1
BACKLOG_REPLICAS = 1.0
# A surge begins when the lower bound of the recent load needs at least this many times the ready replicas.
SURGE = 2.0
_SOON_FULL_SECONDS = 5.0


def demand(settings: ScalingSettings, known: Learned, signals: Signals, now: float, surge_arrivals: float) -> Demand:
    """Replicas by term. `surge_arrivals`: the maximum rate of the running surge, 0 without one."""
    ahead = cold_start(settings, known)
    spread = max(dispersion(known.arrivals), known.spread)
    pool = settings.kv_target * signals.pod_tokens
    pinned = signals.pinned_tokens / pool if pool else 0.0
    queue = (signals.waiting + signals.held) / settings.queued_per_replica
    if known.capacity is None or not known.arrivals.buckets:
        stock = (signals.stock + signals.held_tokens) / pool if pool else 0.0
        return Demand(stock=stock, queue=queue, dispersion=spread, cold_start=ahead)
    capacity = known.capacity
    arrivals = forecast(known.arrivals, spread, capacity.rate, ahead, now)
    lately = sure(known.arrivals.fast, spread, FAST_SECONDS)
    surge = _surge(settings, known, signals, sum(_rate(settings, known, lately, spread)))
    arrivals = max(arrivals, surge_arrivals, lately if surge else 0.0)
    load, room = _rate(settings, known, arrivals, spread)
    most = max(load + room, (1 + BACKLOG_SHARE) * load + BACKLOG_REPLICAS)
    growth = known.sizes.answer / 2 if known.sizes else 0.0
    stock = (signals.stock + signals.held_tokens + growth * signals.held) / pool if pool else 0.0
    return Demand(
        rate=load + room,
        room=room,
        stock=max(pinned, min(stock, most)),
        queue=min(queue, most),
        ttft=min(_ttft(settings, known, signals, arrivals, ahead), most),
        arrivals=arrivals,
        dispersion=spread,
        cold_start=ahead,
        surge=surge,
        lately=lately,
    )


def _rate(settings: ScalingSettings, known: Learned, rate: float, spread: float) -> tuple[float, float]:
    """Arrival rate over capacity, and the minimum headroom with which at most `MISSES` requests wait too long."""
    if known.capacity is None:
        return 0.0, 0.0
    capacity = known.capacity
    load = rate / capacity.rate
    offered = rate * capacity.service
    rows = _spare_rows(offered, spread, settings.ttft / capacity.service if capacity.service > 0 else 0.0)
    return load, rows / offered * load if offered > 0 else 0.0


def _spare_rows(offered: float, spread: float, patience: float) -> float:
    """Spare rows beyond the `offered` ones with which a share `MISSES` of the requests waits longer than allowed.

    The number of requests in service has mean `offered` and variance `spread` times that; a request may wait `patience`
    service times. With s spare rows and beta = s/sqrt(offered*spread), a request finds all rows busy with probability
    1/(1 + beta*Phi(beta)/phi(beta)), and exp(-s*patience/spread) of these wait longer (Halfin and Whitt, Operations
    Research 29, 1981, for many servers).
    """
    if offered <= 0:
        return 0.0
    deviation = sqrt(offered * spread)
    low, high = 0.0, _MOST_DEVIATIONS * deviation
    for _ in range(_HALVINGS):
        rows = (low + high) / 2
        beta = rows / deviation
        waiting = 1.0 / (1.0 + beta * (1.0 + erf(beta / sqrt(2.0))) / 2.0 * sqrt(2.0 * pi) * exp(beta * beta / 2.0))
        if waiting * exp(-rows * patience / spread) > MISSES:
            low = rows
        else:
            high = rows
    return high


def _ttft(settings: ScalingSettings, known: Learned, signals: Signals, arrivals: float, ahead: float) -> float:
    """Replicas needed to prefill all prompts in time; 0 while ready and starting replicas suffice.

    The horizon is a cold start plus the target time. The backlog at its end is the prompts that wait and arrive until
    then, minus those that ready and starting replicas prefill. A replica that has just been started has the target time
    left within the horizon, so it is not requested twice.
    """
    if settings.ttft <= 0 or known.capacity is None or known.sizes is None or known.capacity.prefill <= 0:
        return 0.0
    until = ahead + settings.ttft
    speed = known.capacity.prefill
    served = signals.ready * until + sum(until - max(0.0, ahead - age) for age in signals.starting)
    uncached = 1.0 - known.sizes.hit
    prompts = signals.prompts + signals.held_tokens * uncached + arrivals * known.sizes.uncached * until
    left = prompts - speed * served
    if left <= 0 or not signals.prompts + signals.held_tokens:
        return 0.0
    return signals.ready + signals.pending + left / (speed * settings.ttft)


def _surge(settings: ScalingSettings, known: Learned, signals: Signals, lately: float) -> str:
    """Why there is a surge, so that the load of the last seconds counts in full, as text; empty if there is none."""
    if lately >= SURGE * max(1, signals.ready):
        return f"the last seconds need {lately:.1f} replicas, {signals.ready} are ready"
    if 0 < settings.ttft < 2 * signals.oldest_hold:
        return f"a request has been held for {signals.oldest_hold:.1f} s"
    seconds = known.capacity.step if known.capacity else inf
    full = sum(
        (load.blocks_total - load.blocks_pinned) * load.block_size * seconds
        < _SOON_FULL_SECONDS * (load.running + load.waiting)
        for load in signals.reports.values()
    )
    return f"{full} KV pools will be full within {_SOON_FULL_SECONDS:g} s" if signals.many(full) else ""
