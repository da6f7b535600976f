"""What a pod's steps cost, learned from the sums in its load reports. Pure.

A step takes `base + prefill*P + row*n + context*C` seconds for P prompt tokens, n rows and C tokens of context: linear
enough to choose by (background: errors of 2 to 5 % on measured decode steps).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter

from octavo_protocol.load import StepSums
from octavo_protocol.squares import Matrix, Vector, non_negative, possible

# Fewer steps, or fewer prompt tokens in them, say too little.
MIN_STEPS = 64
MIN_PREFILL = 256
# Sums are halved beyond this many steps, so that a pod's figures follow what it does now.
MEMORY_STEPS = 4096
# Rows and context grow together; so much is added to each coefficient's evidence that the equations stay solvable.
RIDGE = 1e-6
# Pods whose pace differs by no more are taken to be equal; one that is slower still may be so by this factor at most.
SAME_PACE = 1.25
MOST_PACE = 8.0
_MATRIX = (
    ("count", "prefill", "rows", "context"),
    ("prefill", "prefill_prefill", "prefill_rows", "prefill_context"),
    ("rows", "prefill_rows", "rows_rows", "rows_context"),
    ("context", "prefill_context", "rows_context", "context_context"),
)
_RIGHT = ("seconds", "seconds_prefill", "seconds_rows", "seconds_context")
_NAMES = tuple(dict.fromkeys(name for row in (*_MATRIX, _RIGHT) for name in row))
_values = attrgetter(*_NAMES)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: its `base`, and what each prompt token, row and token of context adds."""

    base: float
    prefill: float
    row: float
    context: float


@dataclass(slots=True)
class Steps:
    """The steps of one pod, from the differences between its reports."""

    sums: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(_NAMES, 0.0))
    _last: Mapping[str, float] | None = None

    def feed(self, steps: StepSums) -> bool:
        """Take the sums of a newer report; False when they cannot be those of the same engine."""
        now = {name: float(value) for name, value in zip(_NAMES, _values(steps), strict=True)}
        if not all(0 <= value < inf for value in now.values()):
            return False
        last, self._last = self._last, now
        if last is None:
            return True
        grown = {name: value - last[name] for name, value in now.items()}
        if min(grown.values()) < 0 or (grown["count"] and not possible(*_equations(grown))):
            return False
        keep = 0.5 if self.sums["count"] > MEMORY_STEPS else 1.0
        self.sums = {name: keep * value + grown[name] for name, value in self.sums.items()}
        return True


def fit(pods: Iterable[Steps]) -> StepCost | None:
    """The figures that the steps of equal pods have in common, or None while too little was seen to tell."""
    sums = dict.fromkeys(_NAMES, 0.0)
    for steps in pods:
        for name, value in steps.sums.items():
            sums[name] += value
    if sums["count"] < MIN_STEPS or sums["prefill"] < MIN_PREFILL or not sums["rows"]:
        return None
    found = non_negative(*_equations(sums), (0.0,) * 4, RIDGE)
    # A prompt that costs nothing would be sent anywhere: then neutral figures say more.
    return StepCost(*found) if found[1] > 0 else None


def paced(figures: StepCost, steps: Steps) -> StepCost:
    """The figures of one pod: those in common times its pace, where that differs by more than chance and mix explain.

    Figures fitted for each pod alone differ by noise, and the pod with the luckiest would get everything.
    """
    sums = steps.sums
    expected = (
        figures.base * sums["count"]
        + figures.prefill * sums["prefill"]
        + figures.row * sums["rows"]
        + figures.context * sums["context"]
    )
    if sums["count"] < MIN_STEPS or not expected:
        return figures
    pace = sums["seconds"] / expected
    pace = min(max(pace / SAME_PACE, 1.0), MOST_PACE) if pace > 1 else max(min(pace * SAME_PACE, 1.0), 1 / MOST_PACE)
    if pace == 1.0:
        return figures
    return StepCost(figures.base * pace, figures.prefill * pace, figures.row * pace, figures.context * pace)


def _equations(sums: Mapping[str, float]) -> tuple[Matrix, Vector]:
    return tuple(tuple(sums[name] for name in row) for row in _MATRIX), tuple(sums[name] for name in _RIGHT)
