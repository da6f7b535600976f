"""MXFP4 checkpoints (`quant_method` mxfp4), as gpt-oss is published: each parameter has `_blocks` and `_scales`.

Linear layers have `weight_blocks` uint8 [rows, columns / 32, 16] and `weight_scales` uint8 [rows, columns / 32]. Those
of all experts of a layer lie in one: `gate_up_proj_blocks` [experts, rows, columns / 32, 16]; such a module has all
rows. Layers in `modules_to_not_convert` have `weight` instead.
"""

from __future__ import annotations

from octavo_inference.checkpoints.quantized.fp4 import mxfp4
from octavo_inference.checkpoints.quantized.source import QuantizedReader, Source
from octavo_inference.models.groups import GroupedMatrix


def reader(source: Source) -> QuantizedReader:
    """Reads the linear layers that have blocks."""

    def matrix(module: str, rows: int, columns: int) -> GroupedMatrix | None:
        for blocks, scales in ((".weight_blocks", ".weight_scales"), ("_blocks", "_scales")):
            if source.find(module + blocks) is not None:
                return mxfp4(source, module + blocks, module + scales, (rows, columns))
        return None

    return matrix
