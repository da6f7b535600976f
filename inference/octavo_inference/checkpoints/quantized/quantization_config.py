"""Where a folder describes how its weights are quantized. Nothing is imported here that reads weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_inference.checkpoints.jsonfile import optional_json
from octavo_inference.common.errors import ModelError

MODELOPT_FILE = "hf_quant_config.json"
"""ModelOpt writes it, in older releases without a quantization_config in config.json."""
OLD_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Files of GPTQ and AWQ checkpoints older than `quantization_config`, with their method where they name none."""

_OLD_KEY = "compression_config"  # of compressed-tensors
_KEYS = ("quantization_config", _OLD_KEY)
_MODELOPT = ("modelopt", "modelopt_fp4", "modelopt_mixed")
# What config.json may leave to ModelOpt's file.
_LAYERS = ("quant_algo", "quantized_layers")


@dataclass(frozen=True, slots=True)
class QuantizationSettings:
    """The `values` that the file `path` has, and the `quant_method` that they name."""

    path: Path
    values: dict[str, Any]
    method: object


def quantization_settings(folder: Path) -> QuantizationSettings | None:
    """The quantization_config of config.json or of its text_config, or an older file's settings; None without any.

    Raises `ModelError` for a value that is not an object.
    """
    path = folder / "config.json"
    data = optional_json(path)
    text = data.get("text_config")
    parts = (data, text if isinstance(text, dict) else {})
    found = ((key, part[key]) for key in _KEYS for part in parts if part.get(key))
    key, given = next(found, ("", None))
    if given:
        if not isinstance(given, dict):
            raise ModelError(f"{path}: {key} is {given!r}, expected an object")
        method = given.get("quant_method", _unnamed_method(key, given))
        if method in _MODELOPT:
            layers = {name: value for name, value in _modelopt_file(folder).items() if name in _LAYERS}
            return QuantizationSettings(path, layers | given, method)
        return QuantizationSettings(path, given, method)
    given = _modelopt_file(folder)
    # The file stays when weights were not quantized, but only the cache.
    return QuantizationSettings(folder / MODELOPT_FILE, given, "modelopt") if given else _old_settings(folder)


def _unnamed_method(key: str, given: dict[str, Any]) -> str | None:
    """The method of the first checkpoints of compressed-tensors and bitsandbytes, which name none."""
    if key == _OLD_KEY:
        return "compressed-tensors"
    return "bitsandbytes" if given.get("load_in_4bit") or given.get("load_in_8bit") else None


def _modelopt_file(folder: Path) -> dict[str, Any]:
    path = folder / MODELOPT_FILE
    given = optional_json(path).get("quantization") or {}
    if not isinstance(given, dict):
        raise ModelError(f"{path}: quantization is {given!r}, expected an object")
    return given


def _old_settings(folder: Path) -> QuantizationSettings | None:
    for name, method in OLD_FILES.items():
        given = optional_json(folder / name)
        if given:
            return QuantizationSettings(folder / name, given, given.get("quant_method", method))
    return None
