"""Quantized safetensors checkpoints: reads what config.json's `quantization_config` describes.

Each method has a module with a function `reader(Source) -> QuantizedReader`. It checks names, types and shapes of a
layer's tensors against config.json, and returns a `GroupedMatrix`, which is read in pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from octavo_inference.checkpoints.jsonfile import optional_json
from octavo_inference.checkpoints.quantized import compressed_tensors, fp8
from octavo_inference.checkpoints.quantized.source import QuantizedReader, Source
from octavo_inference.checkpoints.safetensors import Checkpoint
from octavo_inference.common.errors import ModelError, UnsupportedModelError

__all__ = ["QuantizedReader", "quantized_reader"]

_METHODS: dict[str, Callable[[Source], QuantizedReader]] = {
    "compressed-tensors": compressed_tensors.reader,
    "fbgemm_fp8": fp8.reader,
    "fp8": fp8.reader,
}


def quantized_reader(folder: Path, checkpoint: Checkpoint, *, contents: bool) -> QuantizedReader | None:
    """What reads the quantized matrices of a folder, None without a `quantization_config`.

    Without `contents` nothing but the headers of the files is known. Raises `UnsupportedModelError` for an unknown
    method, `ModelError` for a damaged description.
    """
    path = folder / "config.json"
    data = optional_json(path)
    text = data.get("text_config")
    given = data.get("quantization_config") or (text.get("quantization_config") if isinstance(text, dict) else None)
    if not given:
        return None
    if not isinstance(given, dict):
        raise ModelError(f"{path}: quantization_config is {given!r}, expected an object")
    method = given.get("quant_method")
    if method not in _METHODS:
        raise UnsupportedModelError(
            f"{path}: quantization_config.quant_method {method!r} is not supported; supported are {', '.join(_METHODS)}"
        )
    return _METHODS[method](Source(folder, checkpoint, given, contents, path))
