"""Least squares over the sums that pods report of their steps: the same for the gateways' choice and the scaler."""

from __future__ import annotations

from math import sqrt

Vector = tuple[float, ...]
Matrix = tuple[Vector, ...]

# Sums of products are compared with products of sums.
_ROUNDING = 1e-6

# Products of sums of this size are still numbers.
_MOST = 1e60


def possible(gram: Matrix, moment: Vector) -> bool:
    """Whether there were steps, and there can be steps with these sums."""
    values = (*gram[0], *gram[1], *gram[2], *gram[3], *moment)
    if not all(0 <= value < _MOST for value in values) or gram[0][0] < 1 or moment[0] <= 0:
        return False
    pairs = ((i, j) for i in range(4) for j in range(i + 1, 4))
    return all(gram[i][j] ** 2 <= gram[i][i] * gram[j][j] * (1 + _ROUNDING) for i, j in pairs)


def non_negative(gram: Matrix, moment: Vector, prior: Vector, ridge: float) -> list[float]:
    """Non-negative coefficients of the normal equations `gram * coefficients = moment`.

    Those without any evidence keep the prior; the others are pulled towards it by `ridge` times their own evidence.
    Coefficients are scaled to evidence 1. Of those that come out negative the lowest is set to 0 and the rest solved
    anew: not always the exact optimum of the bounded problem, and near enough with four.
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
    """Solve a small positive definite system; all negative where it is none, which no real sums are."""
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
