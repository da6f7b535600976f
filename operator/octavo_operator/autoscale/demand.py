"""How many replicas the load asks for, as sums divided by what one replica takes. Pure.

Each term sees what the others miss: the rate leads and knows nothing of a wrong guess; stock, queue and prompts are
facts, and come late. What waits is gone once the rate has its replicas, so that it may ask for little more than these:
while they start, the queue grows, and would start others that have nothing to do when they are ready.
"""

from __future__ import annotations

from math import erf, exp, inf, pi, sqrt

from octavo_operator.autoscale.arrivals import FAST_SECONDS, dispersion, forecast, sure
from octavo_operator.autoscale.estimators import cold_start
from octavo_operator.autoscale.signals import Signals
from octavo_operator.autoscale.types import Demand, Learned, ScalingSettings

# This share of the requests may wait longer than the target.
MISSES = 0.01
_MOST_DEVIATIONS = 4.0
_HALVINGS = 30
# Replicas that work off what waits, beyond those that the rate asks for: a share of them, and one.
BACKLOG_SHARE = 0.1
BACKLOG_REPLICAS = 1.0
# More than this many times the replicas that serve, surely: the load of the last seconds counts in full.
SURGE = 2.0
_SOON_FULL_SECONDS = 5.0


def demand(settings: ScalingSettings, known: Learned, signals: Signals, now: float, surge_arrivals: float) -> Demand:
    """Replicas by term; `surge_arrivals` is the most that the last seconds had while they have counted in full."""
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
    """Arrivals by what a replica does, and the room for chance: the least with which few enough wait too long."""
    if known.capacity is None:
        return 0.0, 0.0
    capacity = known.capacity
    load = rate / capacity.rate
    offered = rate * capacity.service
    rows = _spare_rows(offered, spread, settings.ttft / capacity.service if capacity.service > 0 else 0.0)
    return load, rows / offered * load if offered > 0 else 0.0


def _spare_rows(offered: float, spread: float, patience: float) -> float:
    """Rows to keep beyond the `offered` ones, so that a share `MISSES` of requests waits longer than it may.

    `offered` requests are in work on average, their variance is `spread` times that; one may wait `patience` times as
    long as an answer takes. With s rows to spare, beta = s/sqrt(offered*spread), a request finds all rows taken with
    the probability 1/(1 + beta*Phi(beta)/phi(beta)), and exp(-s*patience/spread) of these wait longer (Halfin and
    Whitt, Operations Research 29, 1981, for many servers).
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
    """Replicas that compute all prompts in time, from a start now on; 0 while those there are and to come suffice.

    Until a replica started now has served for the target time: what is there and what comes, less what those that
    serve and those that start compute by then. One that has just been started has the target time left, which is what
    it was asked for: it is not asked for again.
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
    """Why the load of the last seconds is to count in full, in words; empty when it is not."""
    if lately >= SURGE * max(1, signals.ready):
        return f"the last seconds ask for {lately:.1f} replicas, {signals.ready} serve"
    if 0 < settings.ttft < 2 * signals.oldest_hold:
        return f"a request has been held for {signals.oldest_hold:.1f} s"
    seconds = known.capacity.step if known.capacity else inf
    full = sum(
        (load.blocks_total - load.blocks_pinned) * load.block_size * seconds
        < _SOON_FULL_SECONDS * (load.running + load.waiting)
        for load in signals.reports.values()
    )
    return f"{full} pools are full within {_SOON_FULL_SECONDS:g} s" if signals.many(full) else ""
