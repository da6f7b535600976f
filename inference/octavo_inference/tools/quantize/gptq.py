"""GPTQ: rounds a matrix column by column, and moves each column's error to the columns that are still to come.

Frantar et al. 2022, https://arxiv.org/abs/2210.17323. The error that counts is that of the outputs, so it is weighted
by the inputs' second moments, which are the Hessian of the outputs' squared error.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo_inference.common.errors import ModelError
from octavo_inference.tools.quantize.grid import Codes, Floats, Grid, Rounded, decode, encode, scales_of

_BLOCK = 128
# Shares of the mean of the Hessian's diagonal that are added to it until it can be inverted.
_DAMPING = (0.01, 0.1, 1.0)


def gptq(weights: Floats, hessian: Floats, grid: Grid, *, by_activation: bool = True) -> Rounded:
    """Round a matrix [rows, columns] for inputs with the second moments `hessian` [columns, columns].

    `by_activation` takes the columns with the largest inputs first. Groups stay as they are stored, so their scales are
    fixed beforehand. Otherwise a group's scales are chosen when its first column is reached.
    """
    rows, columns = weights.shape
    size = grid.group or columns
    moments = np.diagonal(hessian)
    importance = np.where(moments > 0, moments, moments[moments > 0].min(initial=1.0)).astype(np.float32)
    order = np.argsort(-moments, kind="stable") if by_activation else np.arange(columns)
    factor = _inverse_factor(hessian[np.ix_(order, order)])
    # Columns are contiguous: each is read and rounded alone.
    work = np.ascontiguousarray(weights.T[order], np.float32)
    ready = by_activation or grid.group is None
    if ready:
        scales, zeros = scales_of(grid, weights.reshape(rows, -1, size), importance.reshape(-1, size))
    else:
        scales, zeros = np.empty((rows, columns // size), np.float32), np.empty((rows, columns // size), np.uint8)
    codes: Codes = np.empty((columns, rows), np.uint8)
    for start in range(0, columns, _BLOCK):
        end = min(start + _BLOCK, columns)
        errors = np.empty((end - start, rows), np.float32)
        for at in range(start, end):
            before, group = at - start, order[at] // size
            if not ready and at % size == 0:
                # A group lies in one block: the errors of all columns before it are in `work` or in `errors`.
                arrived = work[at : at + size] - factor[start:at, at : at + size].T @ errors[:before]
                found = scales_of(grid, np.ascontiguousarray(arrived.T), importance[at : at + size])
                scales[:, group], zeros[:, group] = found
            column = work[at] - factor[start:at, at] @ errors[:before]
            scale, zero = scales[:, group], zeros[:, group]
            codes[order[at]] = encode(grid, column, scale, zero)
            errors[before] = (column - decode(grid, codes[order[at]], scale, zero)) / factor[at, at]
        work[end:] -= factor[start:end, end:].T @ errors
    return Rounded(grid, np.ascontiguousarray(codes.T), scales, zeros)


def _inverse_factor(hessian: Floats) -> NDArray[np.float32]:
    """The upper triangular U with inverse(hessian) = U' U, of the hessian with a damped diagonal."""
    diagonal = np.diagonal(hessian)
    mean = float(diagonal.mean())
    for share in _DAMPING:
        damped = hessian.astype(np.float32, copy=True)
        # An input that is always zero has no say in the outputs.
        damped[np.diag_indices(len(damped))] += np.where(diagonal > 0, share * mean, mean or 1.0).astype(np.float32)
        try:
            inverse = np.linalg.inv(damped)
            factor = np.linalg.cholesky((inverse + inverse.T) / 2).T
        except np.linalg.LinAlgError:
            continue
        if np.isfinite(factor).all():
            return np.ascontiguousarray(factor, np.float32)
    raise ModelError(
        "the inputs of a matrix have second moments that cannot be inverted: give a longer --calibration text, or "
        "--method rtn"
    )
