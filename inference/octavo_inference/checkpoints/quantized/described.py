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
    given = data.get("quantization_config") or (text.get("quantization_config") if isinstance(text, dict) else None)
    if given:
        if not isinstance(given, dict):
            raise ModelError(f"{path}: quantization_config is {given!r}, expected an object")
        # The first checkpoints of bitsandbytes name no method.
        old = "bitsandbytes" if given.get("load_in_4bit") or given.get("load_in_8bit") else None
        return QuantizationSettings(path, given, given.get("quant_method", old))
    path = folder / MODELOPT_FILE
    given = optional_json(path).get("quantization")
    if not given:
        return _old_settings(folder)
    if not isinstance(given, dict):
        raise ModelError(f"{path}: quantization is {given!r}, expected an object")
    # The file stays when weights were not quantized, but only the cache.
    return QuantizationSettings(path, given, "modelopt")


def _old_settings(folder: Path) -> QuantizationSettings | None:
    for name, method in OLD_FILES.items():
        given = optional_json(folder / name)
        if given:
            return QuantizationSettings(folder / name, given, given.get("quant_method", method))
    return None
