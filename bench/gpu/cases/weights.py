"""Random matrices in every layout of weights that a GPU keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from bench.gpu.cases.case import Place
from bench.lib.rounding import NF4
from octavo_inference.backends.cuda.kernels.weight_layouts import FOUR_BITS, DeviceMatrix, Layout
from octavo_inference.backends.cuda.packing import E2M1, FP8_BY_ROW

LAYOUTS = {
    "dense": Layout("bf16"),
    "int4 q4_0": Layout("int4", 32),
    "int4 q4_k": Layout("int4", 32, minimum=True),
    "int8 q8_0": Layout("int8", 32),
    "int8 q6_k": Layout("int8", 16),
    "int8 q5_k": Layout("int8", 32, minimum=True),
    "fp8": FP8_BY_ROW,
}
PUBLISHED = {
    "int4 gptq": Layout("int4", 128, factors=True),
    "int4 awq": Layout("int4", 128, minimum=True, factors=True),
    "int4 hqq": Layout("int4", 64, minimum=True, factors=True),
    "int8 gptq": Layout("int8", 128, factors=True),
    "code4 nf4": Layout("code4", 64, factors=True, levels=NF4),
    "fp4 mxfp4": Layout("fp4", 32, factors=True),
    "fp4 nvfp4": Layout("fp4", 16, factors=True),
    "fp8 blocks": Layout("fp8", 128),
}
"""Layouts of checkpoints as they are published."""
KNOWN = LAYOUTS | PUBLISHED


@dataclass(frozen=True, slots=True)
class Weights:
    """A random matrix on the device, and in float32."""

    matrix: DeviceMatrix
    dense: Tensor


def weights(place: Place, layout: Layout, rows: int, cols: int) -> Weights:
    """Random weights of about size 1 / sqrt(cols), so that products have size 1."""
    size = cols**-0.5
    if layout.form in {"bf16", "f32"}:
        values = (place.randn(rows, cols, dtype=torch.float32) * size).to(place.dtype)
        return Weights(DeviceMatrix(layout, cols, values), values.float())
    stored, wide, spread = _values(place, layout, rows, cols)
    scales, minimums, factors, levels = None, None, None, None
    if layout.group:
        kind = torch.float32 if layout.form == "fp8" else torch.float16
        scales = ((0.5 + torch.rand(rows, cols // layout.group, device=place.device)) * size * spread).to(kind)
        wide = wide * scales.float().repeat_interleave(layout.group, dim=1)
        if layout.minimum:
            # The middle of the values becomes about zero.
            minimums = (scales.float() * (-8.0 if layout.form in FOUR_BITS else -128.0)).to(kind)
            wide = wide + minimums.float().repeat_interleave(layout.group, dim=1)
    if layout.factors:
        if scales is None:
            factors = (0.5 + torch.rand(rows, device=place.device)) * size * spread
        else:  # powers of two, as `packing` makes them
            factors = 2.0 ** torch.randint(-1, 2, (rows,), device=place.device)
        wide = wide * factors[:, None]
    if layout.levels:
        levels = torch.tensor(layout.levels, dtype=torch.float16, device=place.device)
    return Weights(DeviceMatrix(layout, cols, stored, scales, minimums, factors, levels), wide)


def _values(place: Place, layout: Layout, rows: int, cols: int) -> tuple[Tensor, Tensor, float]:
    """Random values as stored, their levels, and the factor that makes levels about 1."""
    if layout.form == "fp8":
        kept = (place.randn(rows, cols, dtype=torch.float32) * 50).to(torch.float8_e4m3fn)
        return kept.view(torch.uint8), kept.float(), 1 / 50
    number = 16 if layout.form in FOUR_BITS else 256
    values = torch.randint(0, number, (rows, cols), device=place.device, dtype=torch.uint8)
    wide = values.float() - layout.zero
    table = E2M1 if layout.form == "fp4" else layout.levels
    if table:
        wide = torch.tensor(table, dtype=torch.float16, device=place.device).float()[values.long()]
    if layout.form == "int8":
        return values, wide, 4 / number
    halves = values.view(rows, cols // layout.pair, 2, layout.pair // 2)
    packed = (halves[:, :, 0] | halves[:, :, 1] << 4).view(rows, cols // 2)
    return packed, wide, 2 / max(map(abs, table), default=8.0)


def factors_of(matrix: DeviceMatrix) -> Tensor:
    """The factors of a matrix that has them."""
    return cast("Tensor", matrix.factors)
