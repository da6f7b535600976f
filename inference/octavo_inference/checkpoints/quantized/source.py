"""What readers of quantized checkpoints share: tensors by name, with checks, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.safetensors import Checkpoint, RawTensor
from octavo_inference.common.errors import ModelError
from octavo_inference.common.memory_advice import release
from octavo_inference.models.groups import Floats, GroupedMatrix, e4m3_levels, e8m0_levels
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
FLOATS = ("F32", "F16", "BF16")
E8M0 = ("U8", "F8_E8M0")
"""Types of a power of two as its exponent + 127."""
LARGEST_LEVEL = 448.0
"""Of all kinds of values: that of float8."""
_LARGEST = float(np.finfo(np.float32).max)
# Elements of scales that are checked at a time.
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredNumbers:
    """Numbers of a mapped file, [rows, ...], which become float32 when they are read."""

    dtype: str
    data: NDArray[np.generic]

    def __getitem__(self, index: Any) -> Floats:
        """Some numbers, by an index of numpy."""
        part: NDArray[np.generic] = self.data[index]
        if self.dtype == "BF16":
            return bf16_values(part.astype(np.uint16, copy=False))
        if self.dtype == "F8_E4M3" or self.dtype in E8M0:
            levels = e8m0_levels() if self.dtype in E8M0 else e4m3_levels()
            return levels[part.astype(np.uint8, copy=False)]
        return part.astype(np.float32, copy=False)

    def rows(self, start: int, end: int) -> Floats:
        """Some rows."""
        return self[start:end]

    def reshape(self, *shape: int) -> StoredNumbers:
        """The same numbers in another shape."""
        return StoredNumbers(self.dtype, self.data.reshape(shape))


@dataclass(frozen=True, slots=True)
class Source:
    """A quantized checkpoint: `settings` is what the file `config` says about its quantization.

    Without `contents` only headers are known. `fused` has the rows of each part of a layer in which a checkpoint stacks
    several, by the layer's name, as in `qkv_proj`.
    """

    folder: Path
    checkpoint: Checkpoint
    settings: dict[str, Any]
    contents: bool
    config: Path
    fused: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

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
            expected = " or ".join(str(list(shape)) for shape in dict.fromkeys(shapes))
            raise ModelError(f"{self.folder}: tensor {name} has shape {list(raw.shape)}, expected {expected}")
        return raw.data.view(_NUMPY[raw.dtype]).reshape(raw.shape)

    def of_experts(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in which a tensor has the rows of `shape` for each expert apart; `shape` where it has not."""
        raw = self.find(name)
        if raw is not None and len(raw.shape) == len(shape) + 1:
            experts, rows, *rest = raw.shape
            if (experts * rows, *rest) == shape:
                return raw.shape
        return shape

    def numbers(
        self, name: str, dtypes: tuple[str, ...], *shapes: tuple[int, ...], times: float = LARGEST_LEVEL
    ) -> StoredNumbers:
        """Scales, which stay in their file.

        Raises `ModelError` also for those that are not finite, or whose product with `times` is not: with the largest
        level, and with what else multiplies them.
        """
        array = self.array(name, dtypes, *shapes)
        numbers = StoredNumbers(self.checkpoint.tensors[name].dtype, array)
        if self.contents:
            flat = numbers.reshape(-1)
            for start in range(0, array.size, _PIECE):
                values = flat.rows(start, start + _PIECE)
                wrong = np.flatnonzero(~(np.abs(values.astype(np.float64)) * times <= _LARGEST))
                if len(wrong):
                    value = values[wrong[0]]
                    what = "too large, so that weights are" if np.isfinite(value) else "that are"
                    raise ModelError(
                        f"{self.folder}: tensor {name} has scales {what} not finite numbers: {value} at index "
                        f"{start + wrong[0]}"
                    )
            release(array)
        return numbers

    def scales(self, name: str, *shapes: tuple[int, ...]) -> Floats:
        """Few scales, in float32. Raises `ModelError` also for those that are not finite."""
        numbers = self.numbers(name, FLOATS, *shapes)
        return numbers.reshape(-1).rows(0, numbers.data.size).reshape(numbers.data.shape)

    def positive(self, name: str, *shapes: tuple[int, ...]) -> Floats:
        """Few scales. Raises `ModelError` for those that are not finite and above 0."""
        values = self.scales(name, *shapes)
        if self.contents and not (values > 0).all():
            raise ModelError(f"{self.folder}: tensor {name} has the scale {values.min()}, expected more than 0")
        return values
