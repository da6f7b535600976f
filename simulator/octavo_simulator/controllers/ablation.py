"""Ablations: the operator's own `decide` with one part of its demand removed from outside.

The operator deliberately has no switch for this. During a decision one function of its demand is replaced by a weaker
one; all other code, including `decide`, runs unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any, Final

from octavo_operator.autoscale import demand as demands
from octavo_operator.autoscale import policy
from octavo_operator.autoscale.arrivals import LEAST_BUCKETS, Arrivals, mean_rate
from octavo_operator.autoscale.types import Demand, Learned, Observation, ScalingSettings
from octavo_simulator.controllers.octavo import octavo
from octavo_simulator.scenario import Controller, ReplicaTarget

Patch = tuple[ModuleType, str, Any]


def _less(*terms: str) -> Callable[..., Demand]:
    """The demand with some terms set to zero."""
    nothing: dict[str, Any] = dict.fromkeys(terms, 0.0)

    def reduced(*given: Any) -> Demand:
        return replace(demands.demand(*given), **nothing)

    return reduced


def _unlearned(settings: ScalingSettings, known: Learned, *given: Any) -> Demand:
    """The demand of an operator that never learns a replica's capacity."""
    return demands.demand(settings, replace(known, capacity=None), *given)


def _minute(arrivals: Arrivals, _spread: float, _capacity: float, _ahead: float, now: float) -> float:
    """Instead of a forecast, the mean of the last minute."""
    return mean_rate(arrivals, now, LEAST_BUCKETS)


PARTS: Final[Mapping[str, Patch]] = {
    "rate": (policy, "demand", _less("rate", "room")),
    "stock": (policy, "demand", _less("stock")),
    "queue": (policy, "demand", _less("queue")),
    "ttft": (policy, "demand", _less("ttft")),
    "capacity": (policy, "demand", _unlearned),
    "surge": (demands, "_surge", lambda *_: ""),
    "forecast": (demands, "forecast", _minute),
}
"""The removable parts. Without `rate` the measured terms (stock, queue, prompts) decide, but are still bounded by it.

Without `capacity` only stock and queue remain, unbounded. Without `surge` the last seconds never count in full;
without `forecast` there is neither a trend nor a mean over more than a minute.
"""


def without(part: str, settings: Callable[[float], ScalingSettings]) -> Controller:
    """Octavo without one of `PARTS`."""
    whole = octavo(settings)

    def control(observation: Observation, now: float) -> ReplicaTarget:
        with _replaced(*PARTS[part]):
            return whole(observation, now)

    return control


@contextmanager
def _replaced(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
