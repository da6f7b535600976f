"""Quantized safetensors checkpoints: reads what config.json's `quantization_config` describes.

Each method has a module with a function `reader(Source) -> QuantizedReader`. It checks names, types and shapes of a
layer's tensors against config.json, and returns a `GroupedMatrix`, which is read in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from octavo_inference.checkpoints.quantized import (
    auto_round,
    awq,
    bitsandbytes,
    compressed_tensors,
    fp8,
    gptq,
    hqq,
    modelopt,
    mxfp4,
    quark,
)
from octavo_inference.checkpoints.quantized.quantization_config import quantization_settings
from octavo_inference.checkpoints.quantized.source import QuantizedReader, Source
from octavo_inference.checkpoints.quantized.unused_scales import warn_of_cache_scales
from octavo_inference.checkpoints.safetensors import Checkpoint
from octavo_inference.common.errors import UnsupportedModelError

__all__ = ["QuantizedReader", "quantized_reader"]

_METHODS: dict[str, Callable[[Source], QuantizedReader]] = {
    "auto-round": auto_round.reader,
    "awq": awq.reader,
    "bitsandbytes": bitsandbytes.reader,
    "compressed-tensors": compressed_tensors.reader,
    "fbgemm_fp8": fp8.reader,
    "fp8": fp8.reader,
    "gptq": gptq.reader,
    "hqq": hqq.reader,
    "intel/auto-round": auto_round.reader,
    "modelopt": modelopt.reader,
    "modelopt_fp4": modelopt.reader,
    "modelopt_mixed": modelopt.reader,
    "mxfp4": mxfp4.reader,
    "quark": quark.reader,
}


def is_supported(method: object) -> bool:
    """Return True for a method of quantized checkpoints that has a reader."""
    return isinstance(method, str) and method in _METHODS


def quantized_reader(
    folder: Path, checkpoint: Checkpoint, *, contents: bool, fused: Mapping[str, tuple[int, ...]] | None = None
) -> QuantizedReader | None:
    """What reads the quantized matrices of a folder, None without a description of any.

    Without `contents` nothing but the headers of the files is known. `fused` has the rows of the parts of stacked
    layers, as in `Source`. Raises `UnsupportedModelError` for an unknown method, `ModelError` for damaged settings.
    """
    settings = quantization_settings(folder)
    if settings is None:
        return None
    read = _METHODS.get(settings.method) if isinstance(settings.method, str) else None
    if read is None:
        raise UnsupportedModelError(
            f"{settings.path}: quantization_config.quant_method {settings.method!r} is not supported; supported are "
            f"{', '.join(_METHODS)}"
        )
    source = Source(folder, checkpoint, settings.values, contents, settings.path, fused or {})
    warn_of_cache_scales(source)
    return read(source)
