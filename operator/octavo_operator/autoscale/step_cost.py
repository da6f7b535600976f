"""The cost of an engine step, learned from the sums that pods report. Pure.

Non-negative least squares on normal equations with exponential forgetting. A ridge pulls each coefficient towards its
previous value. So directions without data keep their value; under a uniform load rows and context are collinear.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo_common.least_squares import Matrix, Vector, non_negative
from octavo_common.step_cost import StepCost, equations, values
from octavo_protocol.load import StepSums

# Time constant of forgetting: steps of half an hour ago have weight 1/e.
MEMORY_SECONDS = 1800.0
# Weight of the previous value, relative to the coefficient's diagonal in the normal equations.
_RIDGE = 1e-3
# A server's speed is stable: after some minutes of learning the step time changes by at most 10 % a minute.
CHANGE_PER_MINUTE = 0.1
_LEARNING_SECONDS = 300.0

_ZERO: Vector = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Fit:
    """Normal equations `gram * coefficients = moment` over (1, prefill, rows, context), and their solution.

    `age`: seconds of observed steps.
    """

    gram: Matrix = (_ZERO, _ZERO, _ZERO, _ZERO)
    moment: Vector = _ZERO
    model: StepCost | None = None
    age: float = 0.0


def learn(fit: Fit, gram: Matrix, moment: Vector, forget: float) -> Fit:
    """Add the steps of one pod; `forget` is the remaining weight of older ones."""
    rows = zip(fit.gram, gram, strict=True)
    total = tuple(tuple(forget * a + b for a, b in zip(old, new, strict=True)) for old, new in rows)
    sums = tuple(forget * a + b for a, b in zip(fit.moment, moment, strict=True))
    return replace(fit, gram=total, moment=sums)


def solve(fit: Fit, elapsed: float) -> Fit:
    """Fit the model again after another `elapsed` seconds of steps."""
    before = fit.model
    prior = (before.base, before.prefill, before.row, before.context) if before else _ZERO
    found = non_negative(fit.gram, fit.moment, prior, _RIDGE)
    if before is not None and fit.age >= _LEARNING_SECONDS:
        found = _bounded(found, prior, fit.gram, elapsed)
    model = StepCost(*found) if max(found) > 0 else before
    return replace(fit, model=model, age=fit.age + elapsed)


def expected(fit: Fit, gram: Matrix) -> float:
    """The modelled seconds of steps with these sums; without a model their number."""
    count, prefill, rows, context = gram[0]
    return fit.model.seconds(prefill, rows, context, count) if fit.model else count


def between(new: StepSums, old: StepSums) -> tuple[Matrix, Vector]:
    """Normal equations for the steps between two reports of one process."""
    before = values(old)
    return equations({name: value - before[name] for name, value in values(new).items()})


def _bounded(values: list[float], prior: Vector, gram: Matrix, elapsed: float) -> list[float]:
    """The values with the change of the mean recent step limited: all coefficients move by the same share."""
    lately = gram[0]
    old = sum(x * v for x, v in zip(lately, prior, strict=True))
    new = sum(x * v for x, v in zip(lately, values, strict=True))
    most = CHANGE_PER_MINUTE * elapsed / 60
    if old <= 0 or abs(new - old) <= most * old:
        return values
    share = most * old / abs(new - old)
    return [p + share * (v - p) for v, p in zip(values, prior, strict=True)]
