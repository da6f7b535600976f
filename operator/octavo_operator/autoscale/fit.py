"""How long a step of the engine takes, learned from the sums that pods report. Pure.

`seconds = base + prefill*P + row*n + context*C` with P prompt tokens, n decoded rows and C tokens these attend to in
one step. Non-negative least squares on normal equations that forget. A ridge pulls each coefficient towards what it
was: a direction that the data says nothing of (rows and context move together under one kind of load) stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

from octavo_protocol.load import StepSums

# Steps of half an hour ago count for a third.
MEMORY_SECONDS = 1800.0
# Share of a coefficient's own evidence that speaks for what it was before.
_RIDGE = 1e-3
# A server does not become another one: what was learned for some minutes changes by 10 % a minute at the most.
CHANGE_PER_MINUTE = 0.1
_LEARNING_SECONDS = 300.0

# Of four: (1, prefill, rows, context).
Vector = tuple[float, ...]
Matrix = tuple[Vector, ...]

# Sums of products are compared with products of sums.
_ROUNDING = 1e-6

# Products of sums of this size are still numbers.
_MOST = 1e60

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
    values = _solve(fit.gram, fit.moment, prior)
    if before is not None and fit.age >= _LEARNING_SECONDS:
        values = _bounded(values, prior, fit.gram, elapsed)
    model = StepModel(*values) if max(values) > 0 else before
    return replace(fit, model=model, age=fit.age + elapsed)


def expected(fit: Fit, gram: Matrix) -> float:
    """Seconds that steps with these sums take by the model; their number while there is none."""
    count, prefill, rows, context = gram[0]
    model = fit.model
    return count * model.base + model.seconds(prefill, rows, context) - model.base if model else count


def possible(gram: Matrix, moment: Vector) -> bool:
    """Whether there were steps, and there can be steps with these sums."""
    values = (*gram[0], *gram[1], *gram[2], *gram[3], *moment)
    if not all(0 <= value < _MOST for value in values) or gram[0][0] < 1 or moment[0] <= 0:
        return False
    pairs = ((i, j) for i in range(4) for j in range(i + 1, 4))
    return all(gram[i][j] ** 2 <= gram[i][i] * gram[j][j] * (1 + _ROUNDING) for i, j in pairs)


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


def _solve(gram: Matrix, moment: tuple[float, ...], prior: Vector) -> list[float]:
    """Non-negative coefficients; those without any evidence keep the prior.

    Coefficients are scaled to evidence 1. Of those that come out negative the lowest is set to 0 and the rest solved
    anew: not always the exact optimum of the bounded problem, and near enough with four.
    """
    scale = [sqrt(gram[i][i]) for i in range(4)]
    free = [i for i in range(4) if scale[i] > 0]
    found = [p if s == 0 else 0.0 for p, s in zip(prior, scale, strict=True)]
    while free:
        rows = [[gram[i][j] / (scale[i] * scale[j]) for j in free] for i in free]
        right = [moment[i] / scale[i] + _RIDGE * prior[i] * scale[i] for i in free]
        for k in range(len(free)):
            rows[k][k] += _RIDGE
        solved = _eliminate(rows, right)
        worst = min(range(len(free)), key=solved.__getitem__)
        if solved[worst] >= 0:
            for i, value in zip(free, solved, strict=True):
                found[i] = value / scale[i]
            break
        free.pop(worst)
    return found


def _eliminate(rows: list[list[float]], right: list[float]) -> list[float]:
    """Solve a small positive definite system."""
    size = len(right)
    for k in range(size):
        for i in range(k + 1, size):
            factor = rows[i][k] / rows[k][k]
            for j in range(k + 1, size):
                rows[i][j] -= factor * rows[k][j]
            right[i] -= factor * right[k]
    for k in reversed(range(size)):
        right[k] = (right[k] - sum(rows[k][j] * right[j] for j in range(k + 1, size))) / rows[k][k]
    return right
