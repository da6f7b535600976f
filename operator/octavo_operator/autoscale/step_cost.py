"""How long a step of the engine takes, learned from the sums that pods report. Pure.

`seconds = base + prefill*P + row*n + context*C` with P prompt tokens, n decoded rows and C tokens these attend to in
one step. Non-negative least squares on normal equations that forget. A ridge pulls each coefficient towards what it
was: a direction that the data says nothing of (rows and context move together under one kind of load) stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo_protocol.load import StepSums
from octavo_protocol.squares import Matrix, Vector, non_negative

# Steps of half an hour ago count for a third.
MEMORY_SECONDS = 1800.0
# Share of a coefficient's own evidence that speaks for what it was before.
_RIDGE = 1e-3
# A server does not become another one: what was learned for some minutes changes by 10 % a minute at the most.
CHANGE_PER_MINUTE = 0.1
_LEARNING_SECONDS = 300.0

_ZERO: Vector = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class StepModel:
    """Seconds of a step: fixed, per prompt token, per decoded row, per token of context."""

    base: float = 0.0
    prefill: float = 0.0
    row: float = 0.0
    context: float = 0.0

    def seconds(self, prefill: float, rows: float, context: float) -> float:
        """Length of a step with these many of each."""
        return self.base + self.prefill * prefill + self.row * rows + self.context * context


@dataclass(frozen=True, slots=True)
class Fit:
    """Normal equations `gram * coefficients = moment` over (1, prefill, rows, context), and their solution.

    `age` is the time that steps were seen for, seconds.
    """

    gram: Matrix = (_ZERO, _ZERO, _ZERO, _ZERO)
    moment: Vector = _ZERO
    model: StepModel | None = None
    age: float = 0.0


def learn(fit: Fit, gram: Matrix, moment: Vector, forget: float) -> Fit:
    """Add the steps of one pod; `forget` is the factor that older ones keep."""
    rows = zip(fit.gram, gram, strict=True)
    total = tuple(tuple(forget * a + b for a, b in zip(old, new, strict=True)) for old, new in rows)
    sums = tuple(forget * a + b for a, b in zip(fit.moment, moment, strict=True))
    return replace(fit, gram=total, moment=sums)


def solve(fit: Fit, elapsed: float) -> Fit:
    """Fit the model anew after another `elapsed` seconds of steps."""
    before = fit.model
    prior = (before.base, before.prefill, before.row, before.context) if before else _ZERO
    values = non_negative(fit.gram, fit.moment, prior, _RIDGE)
    if before is not None and fit.age >= _LEARNING_SECONDS:
        values = _bounded(values, prior, fit.gram, elapsed)
    model = StepModel(*values) if max(values) > 0 else before
    return replace(fit, model=model, age=fit.age + elapsed)


def expected(fit: Fit, gram: Matrix) -> float:
    """Seconds that steps with these sums take by the model; their number while there is none."""
    count, prefill, rows, context = gram[0]
    model = fit.model
    return count * model.base + model.seconds(prefill, rows, context) - model.base if model else count


def equations(new: StepSums, old: StepSums) -> tuple[Matrix, Vector]:
    """Normal equations of the steps between two reports of one process."""
    count, seconds = float(new.count - old.count), new.seconds - old.seconds
    p, n, c = float(new.prefill - old.prefill), float(new.rows - old.rows), float(new.context - old.context)
    pn, pc = float(new.prefill_rows - old.prefill_rows), float(new.prefill_context - old.prefill_context)
    nc = float(new.rows_context - old.rows_context)
    pp, nn = float(new.prefill_prefill - old.prefill_prefill), float(new.rows_rows - old.rows_rows)
    cc = float(new.context_context - old.context_context)
    timed = (new.seconds_prefill - old.seconds_prefill, new.seconds_rows - old.seconds_rows)
    gram = ((count, p, n, c), (p, pp, pn, pc), (n, pn, nn, nc), (c, pc, nc, cc))
    return gram, (seconds, *timed, new.seconds_context - old.seconds_context)


def _bounded(values: list[float], prior: Vector, gram: Matrix, elapsed: float) -> list[float]:
    """No more than the allowed change of a step as they were lately: the whole step moves, in the same proportions."""
    lately = gram[0]
    old = sum(x * v for x, v in zip(lately, prior, strict=True))
    new = sum(x * v for x, v in zip(lately, values, strict=True))
    most = CHANGE_PER_MINUTE * elapsed / 60
    if old <= 0 or abs(new - old) <= most * old:
        return values
    share = most * old / abs(new - old)
    return [p + share * (v - p) for v, p in zip(values, prior, strict=True)]
