"""FP8 checkpoints (`quant_method` fp8, fbgemm_fp8): float8_e4m3fn weights, scales of the tensor, of rows or of blocks.

Names and meaning as in transformers' FineGrainedFP8Config and FbgemmFp8Config and in vLLM's Fp8Config:
`weight_scale_inv` [ceil(rows / 128), ceil(columns / 128)] with `weight_block_size`, else `weight_scale`. Weights are
multiplied by either. A layer is quantized if its weights are float8: names in `modules_to_not_convert` and
`ignored_layers` are matched in different ways by different programs, the types of tensors are not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo_inference.checkpoints.quantized.scale_grid import ALL_COLUMNS, scale_grid
from octavo_inference.checkpoints.quantized.settings import strings
from octavo_inference.checkpoints.quantized.source import FLOATS, QuantizedReader, Source
from octavo_inference.checkpoints.quantized.unused_scales import warn_of_activation_scales
from octavo_inference.common.errors import ModelError
from octavo_inference.models.groups import GroupedMatrix, Grouping, Groups

_SCHEMES = (None, "static", "dynamic")


def reader(source: Source) -> QuantizedReader:
    """Reads the linear layers whose weights are float8. Raises `ModelError` for settings that are none."""
    block = _block_size(source, source.settings.get("weight_block_size"))
    scheme = source.settings.get("activation_scheme")
    if scheme not in _SCHEMES:
        raise ModelError(
            f"{source.config}: quantization_config.activation_scheme is {scheme!r}, expected 'static' or 'dynamic'"
        )

    for key in ("modules_to_not_convert", "ignored_layers"):
        strings(source, key)

    def matrix(module: str, rows: int, columns: int) -> GroupedMatrix | None:
        raw = source.find(module + ".weight")
        if raw is None or raw.dtype != "F8_E4M3":
            return None
        names = (module + ".weight_scale_inv", module + ".weight_scale")
        name = next((name for name in names if source.find(name)), names[0 if block else 1])
        warn_of_activation_scales(source, module)
        return float8(
            source, "fp8", module + ".weight", name, (rows, columns), block or whole_or_rows(source, name, rows)
        )

    return matrix


def float8(
    source: Source,
    format_: str,
    weight: str,
    scale: str,
    shape: tuple[int, int],
    block: tuple[int, int] | None,
    dtypes: tuple[str, ...] = (*FLOATS, "F8_E8M0"),
) -> GroupedMatrix:
    """A matrix of float8 with scales for blocks of `block` rows and columns, None: one scale."""
    values = source.array(weight, ("F8_E4M3",), shape).view(np.uint8)
    grid = scale_grid(source, scale, *shape, block or shape, dtypes)

    def read(start: int, end: int) -> Groups:
        return Groups(values[start:end], grid.rows(start, end))

    return GroupedMatrix(format_, shape, Grouping("fp8", grid.group), read, (values, grid.numbers.data))


def whole_or_rows(source: Source, scale: str, rows: int) -> tuple[int, int] | None:
    """The block of one row if there are as many scales as rows, None for one scale."""
    raw = source.find(scale)
    return (1, ALL_COLUMNS) if raw is not None and raw.shape in ((rows,), (rows, 1)) else None


def _block_size(source: Source, given: Any) -> tuple[int, int] | None:
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2 or not all(type(n) is int and n > 0 for n in given):
        raise ModelError(f"{source.config}: quantization_config.weight_block_size is {given!r}, expected two sizes")
    return given[0], given[1]
