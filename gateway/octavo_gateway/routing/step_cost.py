"""Fits the step cost of pods (`octavo_common.step_cost`) to the sums in their load reports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from octavo_common.least_squares import non_negative, possible
from octavo_common.step_cost import NAMES, StepCost, equations, values
from octavo_protocol.load import StepSums

LEARN_SECONDS = 1.0
# Fewer steps, or fewer prompt tokens in them, are too little evidence for a fit.
MIN_STEPS = 64
MIN_PREFILL = 256
# Sums are halved beyond this many steps, so that a pod's cost follows its current pace.
MEMORY_STEPS = 4096
# Ridge term of each coefficient: rows and context grow together, and without it the equations may be singular.
RIDGE = 1e-6
# Pods whose pace differs by at most SAME_PACE count as equal. Beyond that, a pod's factor is MOST_PACE at most.
SAME_PACE = 1.25
MOST_PACE = 8.0


@dataclass(slots=True)
class Steps:
    """Sums over the steps of one pod, from the differences between its reports."""

    sums: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(NAMES, 0.0))
    _last: Mapping[str, float] | None = None

    def feed(self, steps: StepSums) -> bool:
        """Add the sums of a newer report; False if they cannot come from the same engine."""
        now = values(steps)
        if not all(0 <= value < inf for value in now.values()):
            return False
        last, self._last = self._last, now
        if last is None:
            return True
        grown = {name: value - last[name] for name, value in now.items()}
        if min(grown.values()) < 0 or (grown["count"] and not possible(*equations(grown))):
            return False
        keep = 0.5 if self.sums["count"] > MEMORY_STEPS else 1.0
        self.sums = {name: keep * value + grown[name] for name, value in self.sums.items()}
        return True


def fit(pods: Iterable[Steps]) -> StepCost | None:
    """The common step cost of equal pods; None without enough evidence."""
    sums = dict.fromkeys(NAMES, 0.0)
    for steps in pods:
        for name, value in steps.sums.items():
            sums[name] += value
    if sums["count"] < MIN_STEPS or sums["prefill"] < MIN_PREFILL or not sums["rows"]:
        return None
    found = non_negative(*equations(sums), (0.0,) * 4, RIDGE)
    # With a prefill cost of zero every pod would suit a prompt: then a neutral cost is better.
    return StepCost(*found) if found[1] > 0 else None


def paced(common: StepCost, steps: Steps) -> StepCost:
    """The cost of one pod: the common cost times its pace, if that differs by more than noise and workload explain.

    Costs fitted for each pod alone differ by noise, and the pod with the luckiest fit would get all requests.
    """
    sums = steps.sums
    expected = common.seconds(sums["prefill"], sums["rows"], sums["context"], sums["count"])
    if sums["count"] < MIN_STEPS or not expected:
        return common
    pace = sums["seconds"] / expected
    pace = min(max(pace / SAME_PACE, 1.0), MOST_PACE) if pace > 1 else max(min(pace * SAME_PACE, 1.0), 1 / MOST_PACE)
    if pace == 1.0:
        return common
    return common.times(pace)


@dataclass(slots=True)
class StepCostEstimator:
    """Estimates the step cost of each pod of one model from the steps of all its pods, once a second."""

    learned_at: float = -inf

    def learn(self, pods: Sequence[Steps], now: float) -> list[StepCost | None]:
        """The cost of each pod, None without enough evidence; an empty list within LEARN_SECONDS of the last fit."""
        if now - self.learned_at < LEARN_SECONDS:
            return []
        self.learned_at = now
        common = fit(pods)
        return [paced(common, steps) if common else None for steps in pods]
