"""Quantized safetensors checkpoints: reads what config.json's `quantization_config` describes.

Each method has a module with a function `reader(Source) -> QuantizedReader`. It checks names, types and shapes of a
layer's tensors against config.json, and returns a `GroupedMatrix`, which is read in pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo_inference.checkpoints.jsonfile import optional_json
from octavo_inference.checkpoints.quantized import auto_round, awq, bitsandbytes, fp8, gptq, hqq
from octavo_inference.checkpoints.quantized.source import QuantizedReader, Source
from octavo_inference.checkpoints.safetensors import Checkpoint
from octavo_inference.common.errors import ModelError, UnsupportedModelError

__all__ = ["QuantizedReader", "quantized_reader"]

_METHODS: dict[str, Callable[[Source], QuantizedReader]] = {
    "auto-round": auto_round.reader,
    "awq": awq.reader,
    "bitsandbytes": bitsandbytes.reader,
    "fp8": fp8.reader,
    "gptq": gptq.reader,
    "hqq": hqq.reader,
    "intel/auto-round": auto_round.reader,
}
# Files of checkpoints older than `quantization_config`, and their method where they name none.
_OLD_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}


def quantized_reader(folder: Path, checkpoint: Checkpoint, *, contents: bool) -> QuantizedReader | None:
    """What reads the quantized matrices of a folder, None without a `quantization_config`.

    Without `contents` nothing but the headers of the files is known. Raises `UnsupportedModelError` for an unknown
    method, `ModelError` for a damaged description.
    """
    path = folder / "config.json"
    data = optional_json(path)
    text = data.get("text_config")
    given = data.get("quantization_config") or (text.get("quantization_config") if isinstance(text, dict) else None)
    if not given and any(name.endswith(".qweight") for name in checkpoint.tensors):
        path, given = _old_description(folder)
    if not given:
        return None
    if not isinstance(given, dict):
        raise ModelError(f"{path}: quantization_config is {given!r}, expected an object")
    method = given.get("quant_method")
    if not isinstance(method, str) or method not in _METHODS:
        raise UnsupportedModelError(
            f"{path}: quantization_config.quant_method {method!r} is not supported; supported are {', '.join(_METHODS)}"
        )
    return _METHODS[method](Source(folder, checkpoint, given, contents, path.name))


def _old_description(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The first of the old files that exists, with what it says."""
    for name, method in _OLD_FILES.items():
        given = optional_json(folder / name)
        if given:
            return folder / name, {"quant_method": method} | given
    return folder / "config.json", {}
