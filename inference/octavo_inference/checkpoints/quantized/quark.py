"""Quark checkpoints (`quant_method` quark): float8, MXFP4 and int8 weights with scales that are multiplied.

The types of a layer's tensors say how it is stored; `global_quant_config`, `layer_quant_config` and `exclude` say the
same in patterns:

    weight float8_e4m3fn           weight_scale [], [1], [rows], [rows, 1]
    weight uint8 [.., columns / 2]  weight_scale float8_e8m0 [rows, columns / 32]: MXFP4
    weight int8                    weight_scale as of float8, weight_zero_point of zeros
"""

from __future__ import annotations

from octavo_inference.checkpoints.quantized.fp4 import mxfp4
from octavo_inference.checkpoints.quantized.fp8 import float8, whole_or_rows
from octavo_inference.checkpoints.quantized.integers import refuse_zero_points, signed_bytes
from octavo_inference.checkpoints.quantized.schemes import INTEGER, LayerScheme
from octavo_inference.checkpoints.quantized.source import FLOATS, QuantizedReader, Source
from octavo_inference.checkpoints.quantized.unused_scales import warn_of_activation_scales
from octavo_inference.common.errors import UnsupportedModelError
from octavo_inference.models.groups import GroupedMatrix

_LABEL = "quark"


def reader(source: Source) -> QuantizedReader:
    """Reads the linear layers whose weights are not floats. Raises `UnsupportedModelError` for other types."""

    def matrix(module: str, rows: int, columns: int) -> GroupedMatrix | None:
        weight, scale, shape = module + ".weight", module + ".weight_scale", (rows, columns)
        raw = source.find(weight)
        if raw is None or raw.dtype in FLOATS:
            return None
        warn_of_activation_scales(source, module)
        if raw.dtype == "F8_E4M3":
            return float8(source, _LABEL, weight, scale, shape, whole_or_rows(source, scale, rows))
        if raw.dtype == "U8":
            return mxfp4(source, weight, scale, shape)
        if raw.dtype == "I8":
            refuse_zero_points(source, module, rows)
            block = whole_or_rows(source, scale, rows)
            scheme = LayerScheme(
                INTEGER,
                8,
                floats=False,
                symmetric=True,
                strategy="channel" if block else "tensor",
                block=block,
                ordered=False,
            )
            return signed_bytes(source, _LABEL, module, shape, scheme)
        raise UnsupportedModelError(
            f"{source.folder}: tensor {weight} has dtype {raw.dtype}; supported of quark are float8 (F8_E4M3), MXFP4 "
            "(U8) and int8 (I8)"
        )

    return matrix
