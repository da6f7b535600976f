"""FP8 checkpoints (`quant_method` fp8): float8_e4m3fn weights with scales of the tensor, of rows, or of blocks.

Names and meaning as in transformers' FineGrainedFP8Config and vLLM's Fp8Config: `weight_scale_inv` [ceil(rows / 128),
ceil(columns / 128)] with `weight_block_size`, else `weight_scale`. Weights are multiplied by either. Scales of
activations (`input_scale`) are not used: activations keep more bits, or get a scale for each token.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo_inference.checkpoints.quantized.source import QuantizedReader, Source
from octavo_inference.common.errors import ModelError
from octavo_inference.models.groups import GroupedMatrix, Grouping, Groups, common_group


def reader(source: Source) -> QuantizedReader:
    """Reads the linear layers whose weights are float8. Raises `ModelError` for a block size that is none."""
    block = _block_size(source, source.settings.get("weight_block_size"))

    def matrix(module: str, rows: int, columns: int) -> GroupedMatrix | None:
        raw = source.find(module + ".weight")
        if raw is None or raw.dtype != "F8_E4M3":
            return None
        values = source.array(module + ".weight", ("F8_E4M3",), (rows, columns)).view(np.uint8)
        height, width = block or (rows, columns)
        name = module + ".weight_scale_inv"
        if source.find(name) is None:
            name = module + ".weight_scale"
        grid = (-(-rows // height), -(-columns // width))
        scales = source.scales(name, *([grid] if block else [(), (1,), (rows,), (rows, 1)]))
        scales = scales.reshape(grid) if block else np.broadcast_to(scales.reshape(-1, 1), (rows, 1))
        group = common_group(columns, width)
        starts = np.arange(0, columns, group) // width

        def read(start: int, end: int) -> Groups:
            height_of = np.arange(start, end) // height if block else np.arange(start, end)
            return Groups(values[start:end], scales[height_of][:, starts])

        return GroupedMatrix("fp8", (rows, columns), Grouping("fp8", group), read, (values,))

    return matrix


def _block_size(source: Source, given: Any) -> tuple[int, int] | None:
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2 or not all(isinstance(n, int) and n > 0 for n in given):
        raise ModelError(f"{source.config}: quantization_config.weight_block_size is {given!r}, expected two sizes")
    return given[0], given[1]
