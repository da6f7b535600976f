"""The step cost model, and the normal equations from the sums that pods report. Pure.

A step takes `base + prefill*P + row*n + context*C` seconds for P prompt tokens, n rows and C context tokens. The linear
model is accurate enough for routing and scaling: 2 to 5 % error on measured decode steps. Each user of the model weighs
the data itself: the gateway uses the last steps, the autoscaler half an hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

from octavo_common.least_squares import Matrix, Vector
from octavo_protocol.load import StepSums

_GRAM = (
    ("count", "prefill", "rows", "context"),
    ("prefill", "prefill_prefill", "prefill_rows", "prefill_context"),
    ("rows", "prefill_rows", "rows_rows", "rows_context"),
    ("context", "prefill_context", "rows_context", "context_context"),
)
_MOMENT = ("seconds", "seconds_prefill", "seconds_rows", "seconds_context")
NAMES = tuple(dict.fromkeys(name for row in (*_GRAM, _MOMENT) for name in row))
"""The fields of `StepSums` in the equations."""

_values = attrgetter(*NAMES)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: a fixed `base`, and the cost per prompt token, row and context token."""

    base: float = 0.0
    prefill: float = 0.0
    row: float = 0.0
    context: float = 0.0

    def seconds(self, prefill: float, rows: float, context: float, steps: float = 1.0) -> float:
        """Seconds of `steps` steps with these total prompt tokens, rows and context tokens."""
        return self.base * steps + self.prefill * prefill + self.row * rows + self.context * context

    def times(self, factor: float) -> StepCost:
        """The cost of an engine whose steps take `factor` times as long."""
        return StepCost(self.base * factor, self.prefill * factor, self.row * factor, self.context * factor)


def values(steps: StepSums) -> dict[str, float]:
    """The sums by name."""
    return {name: float(value) for name, value in zip(NAMES, _values(steps), strict=True)}


def equations(sums: Mapping[str, float]) -> tuple[Matrix, Vector]:
    """Normal equations `gram * coefficients = moment` over (1, prefill, rows, context) from these sums."""
    return tuple(tuple(sums[name] for name in row) for row in _GRAM), tuple(sums[name] for name in _MOMENT)
