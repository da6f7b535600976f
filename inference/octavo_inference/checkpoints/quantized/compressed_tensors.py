"""compressed-tensors checkpoints (`quant_method` compressed-tensors), which llm-compressor writes.

By format, for a layer of [rows, columns]; `weight_scale` is [], [1], [rows, 1], [rows, groups] or [tiles, tiles]:

    pack-quantized         weight_packed int32 [rows, words]: 32 // bits columns in a word, offset by 2 ** (bits - 1);
                           weight_zero_point int32 [words, groups]: 32 // bits rows in a word; weight_g_idx [columns]
    int-quantized          weight int8, weight_zero_point int8 of the shape of weight_scale
    float-quantized        weight float8_e4m3fn
    mxfp8-quantized        the same, weight_scale float8_e8m0 [rows, columns / 32]
    nvfp4-pack-quantized   weight_packed uint8 [rows, columns / 2], weight_scale float8_e4m3fn [rows, columns / 16],
                           divided by weight_global_scale [1]
    mxfp4-pack-quantized   weight_packed as above, weight_scale float8_e8m0 [rows, columns / 32]
    naive-quantized        int-quantized or float-quantized

Weights are those of the definition; activations keep more bits than `input_activations` gives them.
"""

from __future__ import annotations

from typing import Any

from octavo_inference.checkpoints.quantized import schemes
from octavo_inference.checkpoints.quantized.fp4 import mxfp4, nvfp4
from octavo_inference.checkpoints.quantized.fp8 import float8
from octavo_inference.checkpoints.quantized.integers import packed_integers, refuse_zero_points, signed_bytes
from octavo_inference.checkpoints.quantized.schemes import LayerScheme, read_schemes
from octavo_inference.checkpoints.quantized.source import E8M0, FLOATS, QuantizedReader, Source
from octavo_inference.checkpoints.quantized.unused_scales import warn_of_activation_scales
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.groups import GroupedMatrix

_LABEL = "compressed-tensors"


def reader(source: Source) -> QuantizedReader:
    """Reads the linear layers that a group targets. Raises `ModelError` for settings that cannot be."""
    nested = source.settings.get("quantization_config")  # beside sparsity_config, in older checkpoints
    settings = source.settings | nested if isinstance(nested, dict) else source.settings
    _refuse_features(source, settings)
    found = read_schemes(source.config, settings)

    def matrix(module: str, rows: int, columns: int) -> GroupedMatrix | None:
        scheme = found.of(module)
        raw = source.find(module + ".weight")
        if raw is not None and raw.dtype in FLOATS:
            return None
        if scheme is None:
            stored = next((name for name in (module + ".weight", module + ".weight_packed") if source.find(name)), None)
            if stored is None:
                return None
            raise ModelError(
                f"{source.folder}: tensor {stored} is quantized, but no group of quantization_config in "
                f"{source.config.name} has {module} as a target, or `ignore` lists it"
            )
        warn_of_activation_scales(source, module)
        return _matrix(source, module, (rows, columns), scheme)

    return matrix


def _matrix(source: Source, module: str, shape: tuple[int, int], scheme: LayerScheme) -> GroupedMatrix:
    columns = shape[1]
    weight, packed, scale = (f"{module}.{name}" for name in ("weight", "weight_packed", "weight_scale"))
    if scheme.grouped and scheme.block and columns % scheme.block[1]:
        raise ModelError(
            f"{source.config}: quantization_config has groups of {scheme.block[1]} columns, which do not divide the "
            f"{columns} columns of {module}"
        )
    if scheme.symmetric:
        refuse_zero_points(source, module, shape[0], scheme.bits if scheme.format == schemes.PACKED else None)
    if scheme.format == schemes.NVFP4:
        return nvfp4(source, packed, scale, module + ".weight_global_scale", shape, divided=True)
    if scheme.format == schemes.MXFP4:
        return mxfp4(source, packed, scale, shape)
    if scheme.format == schemes.MXFP8:
        return float8(source, _LABEL, weight, scale, shape, scheme.block, E8M0)
    if scheme.format == schemes.PACKED:
        return packed_integers(source, _LABEL, module, shape, scheme)
    if scheme.floats:
        return float8(source, _LABEL, weight, scale, shape, scheme.block)
    return signed_bytes(source, _LABEL, module, shape, scheme)


def _refuse_features(source: Source, settings: dict[str, Any]) -> None:
    sparsity = settings.get("sparsity_config") or {}
    kind = sparsity.get("format", "dense") if isinstance(sparsity, dict) else sparsity
    if kind != "dense":
        raise UnsupportedModelError(
            f"{source.config}: quantization_config.sparsity_config.format {kind!r} is not supported; supported is "
            "'dense': save the model without sparse compression"
        )
    transforms = settings.get("transform_config") or {}
    if not isinstance(transforms, dict) or transforms.get("config_groups"):
        raise UnsupportedModelError(
            f"{source.config}: quantization_config.transform_config is not supported: the layers would have to rotate "
            "their inputs; supported are transforms that were fused into the weights"
        )
