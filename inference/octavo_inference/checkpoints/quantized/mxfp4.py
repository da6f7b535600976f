"""MXFP4 checkpoints (`quant_method` mxfp4), as gpt-oss is published: each parameter has `_blocks` and `_scales`.

Linear layers have `weight_blocks` uint8 [rows, columns / 32, 16] and
`weight_scales` uint8 [rows, columns / 32]. Layers in `modules_to_not_convert` have `weight` instead.
"""

from __future__ import annotations

from octavo_inference.checkpoints.quantized.fp4 import mxfp4
from octavo_inference.checkpoints.quantized.source import QuantizedReader, Source
from octavo_inference.models.groups import GroupedMatrix


def reader(source: Source) -> QuantizedReader:
    """Reads the linear layers that have blocks."""

    def matrix(module: str, rows: int, columns: int) -> GroupedMatrix | None:
        blocks = module + ".weight_blocks"
        if source.find(blocks) is None:
            return None
        return mxfp4(source, blocks, module + ".weight_scales", (rows, columns))

    return matrix
