"""Settings of a quantization_config, with checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_inference.checkpoints.quantized.source import Source
from octavo_inference.common.errors import ModelError, UnsupportedModelError

_LONGEST = 80  # characters of a value in a message


def shown(value: object) -> str:
    """A value in a message: cut if it is long, `missing` for None (also null)."""
    text = "missing" if value is None else repr(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def setting(source: Source, key: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    """`value` of a key. Raises `UnsupportedModelError` for one that is not `allowed`."""
    if not any(type(value) is type(one) and value == one for one in allowed):
        named = ", ".join(map(repr, allowed))
        if value is None:
            raise ModelError(f"{source.config}: quantization_config.{key} is missing; supported are {named}")
        raise UnsupportedModelError(
            f"{source.config}: quantization_config.{key} {shown(value)} is not supported; supported are {named}"
        )
    return value


def flag(source: Source, key: str, value: Any) -> bool:
    """A truth value. Raises `ModelError` for anything else."""
    if not isinstance(value, bool):
        raise ModelError(f"{source.config}: quantization_config.{key} is {shown(value)}, expected true or false")
    return value


def group_size(source: Source, key: str, value: Any) -> int | None:
    """Columns in a group, None for -1: all of them. Raises `ModelError` for what is neither."""
    if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
        raise ModelError(
            f"{source.config}: quantization_config.{key} is {shown(value)}, expected a number of columns, or -1 for all"
        )
    return None if value == -1 else value


def strings(source: Source, key: str) -> list[str]:
    """A list of names, which may be in lists; [] without it. Raises `ModelError` for anything else."""
    value = source.settings.get(key)
    found = [] if value is None else value if isinstance(value, list) else [value]
    flat = [name for part in found for name in (part if isinstance(part, list) else [part])]
    if not all(isinstance(name, str) for name in flat):
        raise ModelError(f"{source.config}: quantization_config.{key} is {shown(value)}, expected a list of names")
    return flat


def mapping(source: Source, key: str) -> Mapping[str, Any]:
    """An object; {} without it. Raises `ModelError` for anything else."""
    value = source.settings.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ModelError(f"{source.config}: quantization_config.{key} is {shown(value)}, expected an object")
    return value
