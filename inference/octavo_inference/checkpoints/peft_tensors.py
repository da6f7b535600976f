"""The tensors of an adapter's file, and their elements as floats.

They are read, not mapped. A volume may be written to while replicas serve: a mapped file that becomes shorter ends the
process with SIGBUS, a read one fails its adapter alone.
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.peft_config import CONFIG_FILE, WEIGHTS_FILE
from octavo_inference.checkpoints.safetensors import read_placed
from octavo_inference.common.errors import ModelError
from octavo_inference.models.weights import bf16_values

FloatFormat = Literal["f32", "f16", "bf16"]
_FLOATS: dict[str, tuple[FloatFormat, type[np.generic]]] = {
    "F32": ("f32", np.float32),
    "F16": ("f16", np.float16),
    "BF16": ("bf16", np.uint16),
}
_PIECE = 1 << 22


@dataclass(frozen=True, slots=True)
class AdapterTensor:
    """A tensor of the open `file` of an adapter in `folder`; `dtype` is safetensors' name. `begin`: its first byte."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    folder: Path
    file: BinaryIO
    begin: int

    @property
    def format(self) -> FloatFormat:
        """Its floats. Raises `ModelError` if it has none."""
        return self._type[0]

    def stored(self, first: int = 0, end: int | None = None) -> NDArray[np.generic]:
        """The elements as they are stored, bits for bf16, of all rows or of some. Raises `ModelError` or `OSError`."""
        rows, *rest = self.shape or (1,)
        end = rows if end is None else min(end, rows)
        values: NDArray[np.generic] = np.empty((end - first, *rest), self._type[1])
        each = values.itemsize * math.prod(rest)
        into = values.reshape(-1).view(np.uint8).data
        _read(self.folder, self.file, self.begin + first * each, into)
        return values if self.shape else values.reshape(())

    def values(self) -> NDArray[np.float32]:
        """All elements. Raises `ModelError` or `OSError`."""
        return as_floats(self.stored())

    @property
    def _type(self) -> tuple[FloatFormat, type[np.generic]]:
        if self.dtype not in _FLOATS:
            raise ModelError(
                f"{self.folder}: tensor {self.name} has dtype {self.dtype}; F32, BF16 and F16 are supported"
            )
        return _FLOATS[self.dtype]


def adapter_tensors(folder: Path, file: BinaryIO) -> dict[str, AdapterTensor]:
    """The tensors of an adapter's open file by name. Raises `ModelError` for a damaged one."""
    placed = read_placed(folder / WEIGHTS_FILE, file)
    return {each.name: AdapterTensor(each.name, each.dtype, each.shape, folder, file, each.begin) for each in placed}


def as_floats(stored: NDArray[np.generic]) -> NDArray[np.float32]:
    """Elements as `AdapterTensor.stored` returns them, or some of their rows, as float32."""
    if stored.dtype == np.uint16:
        return bf16_values(stored.astype(np.uint16, copy=False))
    return stored.astype(np.float32, copy=False)


def adapter_digest(folder: Path, file: BinaryIO) -> str:
    """A hash of an adapter's configuration and open file. Raises `ModelError` or `OSError`."""
    h = hashlib.blake2b((folder / CONFIG_FILE).read_bytes(), digest_size=16)
    size, piece = os.fstat(file.fileno()).st_size, bytearray(_PIECE)
    for begin in range(0, size, _PIECE):
        some = memoryview(piece)[: size - begin]
        _read(folder, file, begin, some)
        h.update(some)
    return h.hexdigest()


def _read(folder: Path, file: BinaryIO, begin: int, into: memoryview) -> None:
    done = 0
    while done < len(into):
        count = os.preadv(file.fileno(), [into[done:]], begin + done)
        if not count:
            raise ModelError(
                f"{folder}: {WEIGHTS_FILE} became shorter while it was read; write adapters to new folders"
            )
        done += count
