"""Metadata of a GGUF file: the numbers of its architecture, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo_inference.checkpoints.gguf import GgufFile
from octavo_inference.common.errors import ModelError


@dataclass(frozen=True, slots=True)
class GgufSettings:
    """The keys `{architecture}.{key}` of a file."""

    file: GgufFile
    architecture: str

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, `default` without it."""
        return self.file.metadata.get(f"{self.architecture}.{key}", default)

    def number(self, key: str, default: float | None = None) -> float:
        """A number. Raises `ModelError` for another value, or none."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{self.file.path}: {self.architecture}.{key} is {value!r}, expected a number")
        return value

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number from `least` on."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ModelError(
                f"{self.file.path}: {self.architecture}.{key} is {value!r}, expected a number from {least}"
            )
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """A switch."""
        return bool(self.get(key, default))

    def cap(self, key: str, default: float) -> float | None:
        """A factor, None for 0."""
        value = self.number(key, default)
        if value < 0:
            raise ModelError(f"{self.file.path}: {self.architecture}.{key} is {value}, expected a positive number")
        return value or None

    def short(self, key: str, default: float) -> float:
        """A number of which float32 was stored, as its shortest decimal."""
        return shortest(self.number(key, default))

    def layers(self) -> int:
        """The number of layers, without those that predict further tokens (`nextn_predict_layers`)."""
        return int(self.number("block_count")) - self.count("nextn_predict_layers", 0, least=0)

    def per_layer(self, key: str) -> list[int] | None:
        """A whole number for each layer, None if the key is one number or missing."""
        values = self.get(key)
        if not isinstance(values, memoryview):
            return None
        if len(values) < self.layers():
            raise ModelError(
                f"{self.file.path}: {self.architecture}.{key} has {len(values)} entries for {self.layers()} layers"
            )
        return [int(value) for value in values.tolist()[: self.layers()]]

    def widest(self, key: str, default: int | None = None) -> int:
        """A whole number, or the largest of those of the layers."""
        values = self.per_layer(key)
        return int(self.number(key, default)) if values is None else max(values)


def shortest(stored: float) -> float:
    """The shortest decimal of a float32: 1e-5 is stored as 9.99999974e-06."""
    return float(np.format_float_positional(np.float32(stored), unique=True))
