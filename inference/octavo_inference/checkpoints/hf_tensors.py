"""Tensors of a safetensors checkpoint, checked against config.json and brought into the canonical order of rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.quantized import QuantizedReader
from octavo_inference.checkpoints.safetensors import Checkpoint, RawTensor
from octavo_inference.common.errors import ModelError
from octavo_inference.models.rows import reordered
from octavo_inference.models.weights import Format, Matrix, Tensor, bf16_values, dequantize

_FLOATS: dict[str, tuple[Format, type[np.generic]]] = {
    "F32": ("f32", np.float32),
    "F16": ("f16", np.float16),
    "BF16": ("bf16", np.uint16),
}
Triple = tuple[tuple[Matrix, ...], tuple[Matrix, ...], tuple[Matrix, ...]]


@dataclass(frozen=True, slots=True)
class HfTensors:
    """Reads tensors and checks their shapes. `norm_offset` is added to norm weights.

    `transposed`: matrices are stored [in, out]. Without `contents` only the headers of files are there: matrices then
    have their formats and sizes.
    """

    folder: Path
    checkpoint: Checkpoint
    quantized: QuantizedReader | None
    norm_offset: float = 0.0
    transposed: bool = False
    contents: bool = True

    def has(self, module: str) -> bool:
        """Whether the checkpoint has tensors of a module: quantized ones have other names than `weight`."""
        return any(name.startswith(module + ".") for name in self.checkpoint.tensors)

    def take(self, name: str, *shapes: tuple[int, ...]) -> RawTensor:
        """A tensor of floats of one of these shapes, the first of which messages name."""
        raw = self.checkpoint.tensors.get(name)
        if raw is None:
            raise ModelError(f"{self.folder}: tensor {name} is missing{self._instead_of(name)}")
        if raw.shape not in shapes:
            raise ModelError(f"{self.folder}: tensor {name} has shape {raw.shape}, config.json says {shapes[0]}")
        if raw.dtype not in _FLOATS:
            raise ModelError(f"{self.folder}: tensor {name} has dtype {raw.dtype}, supported are F32, BF16 and F16")
        return raw

    def _instead_of(self, name: str) -> str:
        """The quantized tensors of a module whose floats are missing, such as those of an embedding."""
        module = name.removesuffix("weight")
        found = sorted(other for other in self.checkpoint.tensors if other.startswith(module))
        return f"; the checkpoint has {found[0]}, and supported there are F32, BF16 and F16" if found else ""

    def matrix(self, name: str, rows: int, columns: int, order: NDArray[np.int64] | None = None) -> Matrix:
        """The weights of a linear layer, which may be quantized; row i is that at order[i]."""
        found: Matrix | None = None
        if self.quantized is not None:
            found = self.quantized(name.removesuffix(".weight"), rows, columns)
        if found is None:
            found = self._transposed(name, rows, columns) if self.transposed else self.table(name, rows, columns)
        return found if order is None or not self.contents else reordered(found, order)

    def _transposed(self, name: str, rows: int, columns: int) -> Tensor:
        return self._turned(self.table(name, columns, rows))

    def _turned(self, stored: Tensor) -> Tensor:
        """A matrix with its rows as columns: a copy."""
        rows, columns = stored.shape
        if self.contents:
            return Tensor(stored.format, (columns, rows), np.ascontiguousarray(stored.data.T))
        return Tensor(stored.format, (columns, rows), stored.data.reshape(columns, rows))

    def table(self, name: str, rows: int, columns: int) -> Tensor:
        """A matrix of floats."""
        return _floats(self.take(name, (rows, columns)), (rows, columns))

    def vector(self, name: str, size: int) -> Tensor:
        """A vector in float32."""
        return Tensor("f32", (size,), self.values(name, size))

    def optional(self, name: str, size: int, order: NDArray[np.int64] | None = None) -> Tensor | None:
        """A vector, None where the checkpoint has none."""
        if name not in self.checkpoint.tensors:
            return None
        values = self.values(name, size)
        return Tensor("f32", (size,), values if order is None else values[order])

    def numbers(self, stored: Tensor) -> NDArray[np.float32]:
        """All numbers of a small matrix in a row."""
        return dequantize(stored).reshape(-1)

    def flat(self, name: str, size: int) -> Tensor:
        """A vector that some checkpoints store as a matrix of one row."""
        return Tensor("f32", (size,), _numbers(self.take(name, (size,), (1, size))))

    def norm(self, name: str, size: int) -> Tensor:
        """The weights of a norm."""
        return Tensor("f32", (size,), self.values(name, size) + np.float32(self.norm_offset))

    def number(self, name: str, default: float) -> float:
        """A single number, `default` without the tensor."""
        return float(_numbers(self.take(name, (), (1,))).item()) if name in self.checkpoint.tensors else default

    def values(self, name: str, size: int) -> NDArray[np.float32]:
        """A vector's numbers."""
        return _numbers(self.take(name, (size,)))

    def stacked_experts(
        self, gate_up: str, down: str, sizes: tuple[int, int, int], *, transposed: bool, interleaved: bool
    ) -> Triple:
        """Gate, up and down of all experts from two tensors of three dimensions; `sizes`: experts, inner, hidden.

        `gate_up` is [experts, 2 inner, hidden], `down` [experts, hidden, inner]; or the other way round if
        `transposed`. Rows of gate and up alternate if `interleaved`, else gate comes first.
        """
        experts, inner, hidden = sizes
        both = self._each(gate_up, (experts, 2 * inner, hidden), transposed=transposed)
        apart = interleaved and self.contents
        parts = [_alternate(each) if apart else each.split(inner, inner) for each in both]
        downs = self._each(down, (experts, hidden, inner), transposed=transposed)
        return tuple(gate for gate, _ in parts), tuple(up for _, up in parts), tuple(downs)

    def _each(self, name: str, shape: tuple[int, int, int], *, transposed: bool) -> list[Matrix]:
        experts, rows, columns = shape
        if self.quantized is not None:
            # Readers name a matrix by its module; of experts the tensor's name is the module, with all rows in one.
            found = self.quantized(name, experts * rows, columns)
            if found is not None:
                return list(found.split(*[rows] * experts))
        stored = (experts, columns, rows) if transposed else shape
        raw = self.take(name, stored)
        flat = _floats(raw, (experts * stored[1], stored[2]))
        each = flat.split(*[stored[1]] * experts)
        return [self._turned(one) for one in each] if transposed else list(each)

    def stacked_biases(self, gate_up: str, down: str, sizes: tuple[int, int, int]) -> dict[str, Any]:
        """Biases beside `stacked_experts`, whose rows alternate; none if the checkpoint has none."""
        experts, inner, hidden = sizes
        if gate_up + "_bias" not in self.checkpoint.tensors:
            return {}
        both = _numbers(self.take(gate_up + "_bias", (experts, 2 * inner))).reshape(experts, inner, 2)
        downs = _numbers(self.take(down + "_bias", (experts, hidden))).reshape(experts, hidden)
        named = {"gate_bias": both[..., 0], "up_bias": both[..., 1], "down_bias": downs}
        return {name: Tensor("f32", values.shape, np.ascontiguousarray(values)) for name, values in named.items()}


def _alternate(matrix: Matrix) -> list[Matrix]:
    """Every other row, from the first and from the second one on."""
    rows = np.arange(matrix.shape[0])
    return [reordered(matrix, rows[start::2]) for start in (0, 1)]


def _floats(raw: RawTensor, shape: tuple[int, ...]) -> Tensor:
    format_, kind = _FLOATS[raw.dtype]
    return Tensor(format_, shape, raw.data.view(kind).reshape(shape))


def _numbers(raw: RawTensor) -> NDArray[np.float32]:
    _, kind = _FLOATS[raw.dtype]
    values = raw.data.view(kind)
    return bf16_values(values.astype(np.uint16, copy=False)) if raw.dtype == "BF16" else values.astype(np.float32)
