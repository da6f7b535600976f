"""What readers of quantized checkpoints share: tensors by name, with checks, in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.safetensors import Checkpoint, RawTensor
from octavo_inference.common.errors import ModelError
from octavo_inference.common.memory_advice import release
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.weights import bf16_values

QuantizedReader = Callable[[str, int, int], GroupedMatrix | None]
"""`reader(module, rows, columns)`: the weights of a linear layer such as `model.layers.0.mlp.up_proj`, None if it is
not quantized."""

_NUMPY: dict[str, type[np.generic]] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "F8_E4M3": np.uint8,
    "F8_E8M0": np.uint8,
}
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Source:
    """A quantized checkpoint: `settings` is its quantization_config. Without `contents` only headers are known."""

    folder: Path
    checkpoint: Checkpoint
    settings: dict[str, Any]
    contents: bool
    file: str = "config.json"

    @property
    def config(self) -> Path:
        """The file that describes the quantization."""
        return self.folder / self.file

    def find(self, name: str) -> RawTensor | None:
        """A tensor, None without it."""
        return self.checkpoint.tensors.get(name)

    def array(self, name: str, dtypes: tuple[str, ...], *shapes: tuple[int, ...]) -> NDArray[np.generic]:
        """The tensor as stored, bfloat16 and float8 as bits. Raises `ModelError` for another type or shape."""
        raw = self.find(name)
        if raw is None:
            raise ModelError(f"{self.folder}: tensor {name} is missing")
        if raw.dtype not in dtypes:
            raise ModelError(f"{self.folder}: tensor {name} has dtype {raw.dtype}, expected {' or '.join(dtypes)}")
        if raw.shape not in shapes:
            expected = " or ".join(str(list(shape)) for shape in shapes)
            raise ModelError(f"{self.folder}: tensor {name} has shape {list(raw.shape)}, expected {expected}")
        return raw.data.view(_NUMPY[raw.dtype]).reshape(raw.shape)

    def scales(self, name: str, *shapes: tuple[int, ...]) -> NDArray[np.float32]:
        """Scales in float32. Raises `ModelError` also for those that are not finite."""
        values = floats(self.array(name, _FLOATS, *shapes))
        if not np.isfinite(values).all():
            raise ModelError(f"{self.folder}: tensor {name} has scales that are not finite numbers")
        return values

    def checked_scales(self, name: str, *shapes: tuple[int, ...]) -> NDArray[np.generic]:
        """Scales as stored, for `floats`: a view of the file. Raises as `scales` does."""
        array = self.array(name, _FLOATS, *shapes)
        if self.contents:
            self.scales(name, *shapes)
            release(array)
        return array


def floats(array: NDArray[np.generic]) -> NDArray[np.float32]:
    """float32 of what `Source.array` gives for floats: bfloat16 comes as bits."""
    return bf16_values(array.astype(np.uint16)) if array.dtype == np.uint16 else array.astype(np.float32)
