"""Least squares for step costs; used by the gateways' routing, the autoscaler and the engine's prefill budget."""

from __future__ import annotations

from math import sqrt

Vector = tuple[float, ...]
Matrix = tuple[Vector, ...]

# Relative tolerance of the Cauchy-Schwarz check.
_ROUNDING = 1e-6

# Limit for sums, so that products of them do not overflow.
_MOST = 1e60


def possible(gram: Matrix, moment: Vector) -> bool:
    """True if the sums are of at least one step, and plausible by the Cauchy-Schwarz inequality."""
    values = (*gram[0], *gram[1], *gram[2], *gram[3], *moment)
    if not all(0 <= value < _MOST for value in values) or gram[0][0] < 1 or moment[0] <= 0:
        return False
    pairs = ((i, j) for i in range(4) for j in range(i + 1, 4))
    return all(gram[i][j] ** 2 <= gram[i][i] * gram[j][j] * (1 + _ROUNDING) for i, j in pairs)


def non_negative(gram: Matrix, moment: Vector, prior: Vector, ridge: float) -> list[float]:
    """Non-negative coefficients of the normal equations `gram * coefficients = moment`.

    Coefficients without data keep the prior; a ridge of `ridge` times their diagonal pulls the others towards it.
    Coefficients are scaled to diagonal 1. While one is negative, the lowest is set to 0 and the rest solved
    again. That is not always the exact optimum of the bounded problem, but close enough for four coefficients.
    """
    scale = [sqrt(gram[i][i]) for i in range(len(moment))]
    free = [i for i in range(len(moment)) if scale[i] > 0]
    found = [p if s == 0 else 0.0 for p, s in zip(prior, scale, strict=True)]
    while free:
        rows = [[gram[i][j] / (scale[i] * scale[j]) for j in free] for i in free]
        right = [moment[i] / scale[i] + ridge * prior[i] * scale[i] for i in free]
        for k in range(len(free)):
            rows[k][k] += ridge
        solved = _eliminate(rows, right)
        worst = min(range(len(free)), key=solved.__getitem__)
        if solved[worst] >= 0:
            for i, value in zip(free, solved, strict=True):
                found[i] = value / scale[i]
            break
        free.pop(worst)
    return found


def _eliminate(rows: list[list[float]], right: list[float]) -> list[float]:
    """Solve a small positive definite system; all -1 if it is not definite, which does not occur with real sums."""
    size = len(right)
    for k in range(size):
        if rows[k][k] <= 0:
            return [-1.0] * size
        for i in range(k + 1, size):
            factor = rows[i][k] / rows[k][k]
            for j in range(k + 1, size):
                rows[i][j] -= factor * rows[k][j]
            right[i] -= factor * right[k]
    for k in reversed(range(size)):
        right[k] = (right[k] - sum(rows[k][j] * right[j] for j in range(k + 1, size))) / rows[k][k]
    return right
