"""How many replicas the load asks for, as sums divided by what one replica takes. Pure.

Each term sees what the others miss: the rate leads and knows nothing of a wrong guess; the stock of KV tokens and the
queue are facts, and come late.
"""

from __future__ import annotations

from math import sqrt

from octavo_operator.autoscale.arrivals import dispersion, forecast
from octavo_operator.autoscale.learning import cold_start
from octavo_operator.autoscale.signals import Signals
from octavo_operator.autoscale.types import Demand, Learned, Settings

# Standard deviations of the work at hand that replicas are kept for, beyond its mean.
SAFETY = 2.0


def demand(settings: Settings, known: Learned, signals: Signals, now: float) -> Demand:
    """Replicas by term; pods without a sample add nothing."""
    ahead = cold_start(settings, known)
    stock = signals.pinned_tokens + signals.waiting_tokens + signals.held_tokens
    spread = dispersion(known.arrivals)
    rate = forecast(known.arrivals, known.capacity.rate, ahead, now) if known.capacity else 0.0
    return Demand(
        rate=_rate(settings, known, rate, spread),
        stock=stock / (settings.kv_target * signals.pod_tokens) if signals.pod_tokens else 0.0,
        queue=(signals.waiting + signals.held) / settings.queued_per_replica,
        arrivals=rate,
        dispersion=spread,
        cold_start=ahead,
    )


def _rate(settings: Settings, known: Learned, rate: float, spread: float) -> float:
    """Arrivals by what a replica does, and room for chance.

    Requests in work vary as those that arrive within the time one is in work: for that long, and as long as one may
    wait, a replica averages. The variance of `rate * time` requests is `spread` times as much.
    """
    if known.capacity is None or known.capacity.rate <= 0:
        return 0.0
    load = rate / known.capacity.rate
    taken = known.capacity.rate * (known.capacity.service + settings.ttft)
    return load + SAFETY * sqrt(load * spread / taken)
