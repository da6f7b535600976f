"""What a pod's steps cost (`octavo_common.step_cost`), learned from the sums in its load reports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from octavo_common.least_squares import non_negative, possible
from octavo_common.step_cost import NAMES, StepCost, equations, values
from octavo_protocol.load import StepSums

LEARN_SECONDS = 1.0
# Fewer steps, or fewer prompt tokens in them, say too little.
MIN_STEPS = 64
MIN_PREFILL = 256
# Sums are halved beyond this many steps, so that a pod's cost follows what it does now.
MEMORY_STEPS = 4096
# Rows and context grow together; so much is added to each coefficient's evidence that the equations stay solvable.
RIDGE = 1e-6
# Pods whose pace differs by no more are taken to be equal; one that is slower still may be so by this factor at most.
SAME_PACE = 1.25
MOST_PACE = 8.0


@dataclass(slots=True)
class Steps:
    """The steps of one pod, from the differences between its reports."""

    sums: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(NAMES, 0.0))
    _last: Mapping[str, float] | None = None

    def feed(self, steps: StepSums) -> bool:
        """Take the sums of a newer report; False when they cannot be those of the same engine."""
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
    """The cost that the steps of equal pods have in common, or None while too little was seen to tell."""
    sums = dict.fromkeys(NAMES, 0.0)
    for steps in pods:
        for name, value in steps.sums.items():
            sums[name] += value
    if sums["count"] < MIN_STEPS or sums["prefill"] < MIN_PREFILL or not sums["rows"]:
        return None
    found = non_negative(*equations(sums), (0.0,) * 4, RIDGE)
    # A prompt that costs nothing would be sent anywhere: then a neutral cost says more.
    return StepCost(*found) if found[1] > 0 else None


def paced(common: StepCost, steps: Steps) -> StepCost:
    """The cost of one pod: what is common times its pace, where that differs by more than chance and mix explain.

    Costs fitted for each pod alone differ by noise, and the pod with the luckiest would get everything.
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
    """What steps cost on each pod of one model, from those of all; once a second is enough."""

    learned_at: float = -inf

    def learn(self, pods: Sequence[Steps], now: float) -> list[StepCost | None]:
        """The cost of each pod, None while too little was seen; an empty list where it was learned just now."""
        if now - self.learned_at < LEARN_SECONDS:
            return []
        self.learned_at = now
        common = fit(pods)
        return [paced(common, steps) if common else None for steps in pods]
