"""ModelOpt checkpoints (`quant_method` modelopt, or a file hf_quant_config.json): FP8, NVFP4, MXFP8, mixtures of them.

By `quant_algo`, for a layer of [rows, columns] (NVIDIA's unified Hugging Face checkpoint):

    FP8                        weight float8_e4m3fn, weight_scale []
    FP8_PER_CHANNEL_PER_TOKEN  the same, weight_scale [rows]
    FP8_PB_WO                  the same, weight_scale [tiles, 1, tiles, 1] of 128 x 128
    MXFP8                      the same, weight_scale float8_e8m0 [rows, columns / 32]
    NVFP4, W4A16_NVFP4         weight uint8 [rows, columns / 2], weight_scale float8_e4m3fn [rows, columns / 16],
                               multiplied by weight_scale_2 []
    MIXED_PRECISION            quantized_layers has the quant_algo of each layer

Layers in `exclude_modules` or `ignore` have 16 bits. `kv_cache_quant_algo` is what the checkpoint recommends for the
cache; `--kv-cache-dtype` determines it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_inference.checkpoints.quantized.fp4 import nvfp4
from octavo_inference.checkpoints.quantized.fp8 import float8, whole_or_rows
from octavo_inference.checkpoints.quantized.source import E8M0, FLOATS, QuantizedReader, Source
from octavo_inference.checkpoints.quantized.unused_scales import warn_of_activation_scales
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.groups import GroupedMatrix

_MIXED = "MIXED_PRECISION"
_TILES, _MXFP8 = "FP8_PB_WO", "MXFP8"
_FLOAT4 = ("NVFP4", "W4A16_NVFP4")
_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", _TILES, _MXFP8, *_FLOAT4)
_GROUPS = {_TILES: 128, _MXFP8: 32} | dict.fromkeys(_FLOAT4, 16)


def reader(source: Source) -> QuantizedReader:
    """Reads the linear layers whose weights are not floats. Raises `UnsupportedModelError` for other algorithms."""
    nested = source.settings.get("quantization")
    settings = nested if isinstance(nested, dict) else source.settings
    whole = _algorithm(source, "quant_algo", settings)
    layers = _layers(source, settings) if whole == _MIXED else {}

    def matrix(module: str, rows: int, columns: int) -> GroupedMatrix | None:
        weight, scale = module + ".weight", module + ".weight_scale"
        raw = source.find(weight)
        if raw is None or raw.dtype in FLOATS:
            return None
        algorithm = layers.get(module) if whole == _MIXED else whole
        if algorithm is None:
            raise ModelError(
                f"{source.folder}: tensor {weight} is quantized ({raw.dtype}), but {source.config.name} has no "
                f"quant_algo for {module}"
            )
        if source.find(module + ".pre_quant_scale") is not None:
            raise UnsupportedModelError(
                f"{source.folder}: tensor {module}.pre_quant_scale is not supported: the layer's inputs would have to "
                "be scaled; supported are checkpoints without it"
            )
        warn_of_activation_scales(source, module)
        shape = (rows, columns)
        if algorithm in _FLOAT4:
            return nvfp4(source, weight, scale, module + ".weight_scale_2", shape, divided=False)
        if algorithm == _MXFP8:
            return float8(source, "modelopt", weight, scale, shape, (1, _GROUPS[_MXFP8]), E8M0)
        if algorithm == _TILES:
            return float8(source, "modelopt", weight, scale, shape, (_GROUPS[_TILES], _GROUPS[_TILES]))
        return float8(source, "modelopt", weight, scale, shape, whole_or_rows(source, scale, rows))

    return matrix


def _algorithm(source: Source, key: str, settings: Mapping[str, Any]) -> str | None:
    """The `quant_algo` of settings, None where only the cache is quantized."""
    given = settings.get("quant_algo")
    if given is None:
        return None
    name = given.upper() if isinstance(given, str) else given
    if name not in (*_ALGORITHMS, _MIXED):
        raise UnsupportedModelError(
            f"{source.config}: {key} {given!r} is not supported; supported are {', '.join((*_ALGORITHMS, _MIXED))}"
        )
    group, expected = settings.get("group_size"), _GROUPS.get(name)
    if group is not None and expected is not None and group != expected:
        raise ModelError(f"{source.config}: {key} is {name} with a group_size of {group!r}, expected {expected}")
    return str(name)


def _layers(source: Source, settings: Mapping[str, Any]) -> dict[str, str | None]:
    given = settings.get("quantized_layers")
    if not isinstance(given, dict) or not all(isinstance(layer, dict) for layer in given.values()):
        raise ModelError(f"{source.config}: quantized_layers is {given!r}, expected an object of objects")
    return {name: _algorithm(source, f"quantized_layers.{name}.quant_algo", layer) for name, layer in given.items()}
