"""Copies planned matrices to the device, some rows at a time: the host never holds a full copy."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix
from octavo_inference.backends.cuda.linear import quantize_rows
from octavo_inference.backends.cuda.packing import Planes, PlaneType, pack, plane_shapes
from octavo_inference.backends.cuda.plan_parts import Part
from octavo_inference.backends.cuda.staging import Staging
from octavo_inference.models.weights import Format, Matrix, Tensor, dequantize

Progress = Callable[[int, int], None]

_TYPES: dict[PlaneType, torch.dtype] = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "u8": torch.uint8,
}
_FLOATS: dict[Format, torch.dtype] = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# Weights packed at a time: unpacking needs some bytes of working memory for each.
_PIECE = 2 << 20
_MOST_THREADS = 8


class Sender:
    """Allocates the memory of `parts` and fills it piece by piece. `done` counts the bytes sent, of a `total`."""

    def __init__(self, parts: Iterable[Part], total: int, device: torch.device, progress: Progress | None) -> None:
        # Before the device quantizes them to fp8, weights are at most float32.
        widest = max(max(_PIECE, part.cols) for part in parts) * 4
        self._staging = Staging(widest, device)
        self._device = device
        self._total, self._progress = total, progress
        self.done = 0

    def matrix(self, part: Part) -> DeviceMatrix:
        """Send the rows of all sources of a part."""
        planes = {
            name: torch.empty(shape, dtype=_TYPES[kind], device=self._device)
            for name, (kind, shape) in plane_shapes(part.layout, part.rows, part.cols).items()
        }
        start = 0
        for piece, packed in _packed(part):
            rows = {name: plane[start : start + piece.shape[0]] for name, plane in planes.items()}
            if packed is None:
                self._quantize(cast("Tensor", piece), rows)
            else:
                for name, array in packed.items():
                    self._staging.send(array, rows[name])
            piece.release()
            start += piece.shape[0]
            self._count(*rows.values())
        # Release the whole again: pages that two pieces share are in none of them.
        for source in part.sources:
            source.release()
        if part.layout.levels:
            planes["levels"] = self._vector(np.array(part.layout.levels, np.float32), torch.float16)
        if part.order is not None:
            planes["order"] = torch.from_numpy(part.order.astype(np.int32)).to(self._device)
            self._count(planes["order"])
        return DeviceMatrix(part.layout, part.cols, **planes)

    def bias(self, part: Part) -> Torch | None:
        """Send a part's biases; zeros for sources that have none."""
        if part.bias_type is None:
            return None
        values = [
            np.zeros(source.shape[0], np.float32) if bias is None else dequantize(bias).reshape(-1)
            for source, bias in zip(part.sources, part.biases, strict=True)
        ]
        return self._vector(np.concatenate(values), _TYPES[part.bias_type])

    def norm(self, tensor: Tensor) -> Torch:
        """Send a vector, as float32."""
        return self.vector(dequantize(tensor).reshape(-1))

    def given_norm(self, tensor: Tensor | None) -> Torch | None:
        """Send a vector that a layer may lack."""
        return None if tensor is None else self.norm(tensor)

    def vector(self, values: NDArray[np.float32]) -> Torch:
        """Send values of any shape, as float32."""
        return self._vector(values.copy(), torch.float32)

    def _vector(self, values: NDArray[np.float32], dtype: torch.dtype) -> Torch:
        result = torch.from_numpy(values).to(self._device, dtype)
        self._count(result)
        return result

    def _quantize(self, piece: Tensor, rows: dict[str, Torch]) -> None:
        dense = torch.empty(piece.shape, dtype=_FLOATS[piece.format], device=self._device)
        self._staging.send(piece.data, dense)
        for name, result in zip(("values", "factors"), quantize_rows(dense), strict=True):
            rows[name].copy_(result)

    def _count(self, *finished: Torch) -> None:
        self.done += sum(tensor.nbytes for tensor in finished)
        if self._progress is not None:
            self._progress(self.done, self._total)


def _packed(part: Part) -> Iterator[tuple[Matrix, Planes | None]]:
    """Pieces of a part's rows in order, each with its planes; None for floats that the device quantizes to fp8.

    Threads pack some pieces ahead: a bus moves weights several times faster than one core repacks them. Floats are
    mostly views, for which threads would only cost time.
    """
    if part.layout.form in {"bf16", "f32"}:
        yield from ((piece, pack(piece, part.layout)) for piece in _pieces(part))
        return
    pending: deque[tuple[Matrix, Future[Planes] | None]] = deque()
    workers = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers) as threads:
        for piece in _pieces(part):
            by_device = part.layout.form == "fp8" and isinstance(piece, Tensor)
            pending.append((piece, None if by_device else threads.submit(pack, piece, part.layout)))
            if len(pending) > workers:
                yield _taken(*pending.popleft())
        while pending:
            yield _taken(*pending.popleft())


def _taken(piece: Matrix, packing: Future[Planes] | None) -> tuple[Matrix, Planes | None]:
    return piece, None if packing is None else packing.result()


def _pieces(part: Part) -> Iterator[Matrix]:
    step = max(1, _PIECE // part.cols)
    for source in part.sources:
        for first in range(0, source.shape[0], step):
            yield source.rows(first, min(first + step, source.shape[0]))
