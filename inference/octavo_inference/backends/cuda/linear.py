"""Matrices on the device: products with activations, and embedding lookup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda import library_products
from octavo_inference.backends.cuda.kernels.dequantize import dequantize_rows
from octavo_inference.backends.cuda.kernels.embedding import embed
from octavo_inference.backends.cuda.kernels.gemv import gemv, suits
from octavo_inference.backends.cuda.kernels.launch_configs import ROW_STEPS
from octavo_inference.backends.cuda.kernels.linear import linear
from octavo_inference.backends.cuda.kernels.quantize import quantize, quantize_groups
from octavo_inference.backends.cuda.kernels.tuned_configs import Tiles
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix

_LARGEST_E4M3 = 448.0
_PIECE_STEP = 16  # rows of a piece, so that each begins at an aligned address
FP8_ROWS = 33
"""Fewest rows of x that are quantized to fp8, with fp8 weights and GPU support. Below, reading weights dominates."""
LIBRARY_ROWS = ROW_STEPS[-1] + 1
"""Fewest rows of x for which packed weights are dequantized in pieces, and multiplied by the library.

On an H100 this and the best tile of `linear.linear` take about the same time at 256 rows, and half of it at 2,048
(docs/evidence/gpu.md).
"""
RULES = Tiles()
"""Launch configurations without measurements: the rules alone."""


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x @ weights.T + bias. The matrices of `parts` are stacked by rows; each has its smallest layout.

    `biases` are those of the parts: in the weights' type with dense ones, else float32, as for the head. All layers of
    a model share `workspace`, because they run one after the other. They also share two copies of x:

    - `fp8_activations` (uint8, elements of the largest x), where the weights are one part of fp8 that the GPU and its
      libraries multiply by fp8. x is quantized in each step, from `FP8_ROWS` rows on.
    - `ordered_activations` (in the type of x), where a part has an order of columns.
    """

    parts: tuple[DeviceMatrix, ...]
    biases: tuple[Torch | None, ...]
    workspace: Torch
    fp8_activations: Torch | None = None
    ordered_activations: Torch | None = None
    tiles: Tiles = RULES

    @property
    def rows(self) -> int:
        """Number of outputs of all parts."""
        return sum(part.rows for part in self.parts)

    @property
    def columns(self) -> int:
        """Number of inputs."""
        return self.parts[0].cols

    def __call__(self, x: Torch, out: Torch | None = None) -> Torch:
        """[M, K] to [M, rows] in the type of `out`, or of x without `out`. Rows of `out` may have any stride."""
        if out is None:
            out = torch.empty((len(x), self.rows), dtype=x.dtype, device=x.device)
        if self.fp8_activations is not None and _many_for_fp8(len(x), self.parts[0], self.workspace):
            _in_fp8(x, self.parts[0], self.biases[0], out, self.fp8_activations, self.workspace)
            return out
        start, sorted_by, given = 0, None, x
        for part, bias in zip(self.parts, self.biases, strict=True):
            if part.order is not sorted_by:  # neighbours of one order have one tensor
                given = x if part.order is None else self._ordered(x, part.order)
                sorted_by = part.order
            _product(given, part, bias, out[:, start : start + part.rows], self.workspace, self.tiles)
            start += part.rows
        return out

    def _ordered(self, x: Torch, order: Torch) -> Torch:
        copy = cast("Torch", self.ordered_activations)[: x.numel()].view(x.shape)
        return torch.index_select(x, 1, order, out=copy)


@dataclass(frozen=True, slots=True)
class Embedding:
    """An embedding table with one row per token id, and one of `positions` [rows, hidden] if they are learned."""

    table: DeviceMatrix
    positions: Torch | None = None

    def __call__(
        self, tokens: Torch, out: Torch | None = None, *, scale: float = 1.0, positions: Torch | None = None
    ) -> Torch:
        """Rows of tokens [T] times `scale`, and those of positions [T] if they are learned: [T, hidden] in float32."""
        if out is None:
            out = torch.empty((len(tokens), self.table.cols), dtype=torch.float32, device=tokens.device)
        at = None if self.positions is None else positions
        embed(tokens, self.table, out, factor=scale, positions=at, learned=self.positions)
        return out


def quantize_rows(rows: Torch) -> tuple[Torch, Torch]:
    """Float rows [rows, cols] to float8_e4m3fn as uint8, and float32 scales [rows]: the largest becomes 448."""
    wide = rows.to(torch.float32)
    scales = wide.abs().amax(dim=1) / _LARGEST_E4M3
    # A row of zeros has no scale of its own.
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    return (wide / scales[:, None]).to(torch.float8_e4m3fn).view(torch.uint8), scales


def _many_for_fp8(count: int, part: DeviceMatrix, workspace: Torch) -> bool:
    """Return True for so many rows of x that they are quantized to fp8, too.

    In groups, weights are rearranged for the library first, and both scales are in the workspace.
    """
    if part.layout.group == 0:
        return count >= FP8_ROWS
    room = (count + part.rows) * part.groups <= workspace.numel()
    return count >= LIBRARY_ROWS and count % library_products.GROUPED_ROWS == 0 and room


def _in_fp8(x: Torch, part: DeviceMatrix, bias: Torch | None, out: Torch, buffer: Torch, workspace: Torch) -> None:
    values, count = buffer[: x.numel()].view(x.shape), len(x)
    if part.layout.group == 0:
        # A product of the library does not use the workspace.
        scales = workspace[:count]
        quantize(x, values, scales)
        library_products.fp8(values, scales, part.values, cast("Torch", part.factors), bias, out)
        return
    by_group = workspace[: part.groups * (count + part.rows)]
    x_scales = by_group[: part.groups * count].view(part.groups, count)
    scales = by_group[x_scales.numel() :].view(part.groups, part.rows)
    quantize_groups(x, values, x_scales, part.layout.group)
    scales.copy_(cast("Torch", part.scales).t())
    library_products.fp8_groups(values, x_scales, part.values, scales, bias, out)


def _in_pieces(x: Torch, part: DeviceMatrix, bias: Torch | None, out: Torch, workspace: Torch) -> None:
    """Dequantize as many rows of weights as `workspace` holds, multiply, and go on.

    Weights are rounded to the type of x, and sums before a bias is added. A row of weights is shorter than a million.
    """
    cols, buffer = part.cols, workspace.view(x.dtype)
    rows = min(part.rows, buffer.numel() // cols // _PIECE_STEP * _PIECE_STEP)
    for first in range(0, part.rows, rows):
        piece = slice(first, min(first + rows, part.rows))
        dense = buffer[: (piece.stop - first) * cols].view(-1, cols)
        dequantize_rows(part.within(piece), dense)
        library_products.dense(x, dense, None, out[:, piece])
    if bias is not None:  # in float32, which the library does not add
        out.add_(bias)


def _product(x: Torch, part: DeviceMatrix, bias: Torch | None, out: Torch, workspace: Torch, tiles: Tiles) -> None:
    form = part.form
    if len(x) <= tiles.few(form) and suits(x, part):
        gemv(x, part, bias, out, tile=tiles.for_gemv(form, len(x), part.values))
    elif form == "dense":
        library_products.dense(x, part.values, bias, out)
    elif len(x) >= LIBRARY_ROWS:
        _in_pieces(x, part, bias, out, workspace)
    else:
        linear(x, part, bias, out, workspace, tile=tiles.for_linear(form, len(x), part.values, x.dtype))
