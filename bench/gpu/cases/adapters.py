"""Cases of adapters: blocks of rows by slot, and the two products of their changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from bench.gpu.cases.case import Case, Pair, Place, Trial, rounding, size_of
from octavo_inference.backends.cuda.adapter_layout import AdaptedMatrix, padded
from octavo_inference.backends.cuda.adapters import DeviceAdapters
from octavo_inference.backends.cuda.buffers import StepBuffers, StepLimits, adapter_shapes
from octavo_inference.backends.cuda.inputs import Inputs
from octavo_inference.models.adapter import Adapter, LowRank
from octavo_inference.models.config import ModelConfig

CONFIG = ModelConfig(
    architecture="llama", layers=1, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=14_336,
    vocab=128_256, max_positions=8192, rope_theta=1e4, norm_eps=1e-5, tied_embeddings=True, eos_token_ids=(0,),
)  # fmt: skip
MAX_RANK = 64


@dataclass(frozen=True, slots=True)
class AdaptedRows:
    """Rows of x, each with one of some adapters of a rank, for a matrix of Llama-3.1-8B.

    `slots`: those of the device, the adapters' included.
    """

    matrix: str
    fields: tuple[str, ...]
    parts: tuple[int, ...]
    columns: int
    rows: int
    adapters: int
    rank: int = 16
    slots: int = 64

    def __str__(self) -> str:
        return f"{self.matrix} T={self.rows}, {self.adapters} of rank {self.rank}"

    def prepare(self, place: Place) -> Trial:
        """Prepare the trial: rows are sorted, then both products are launched."""
        by_ids = self.matrix == "embedding"
        rows, columns = place.pick(self.rows, min(self.rows, 37)), place.pick(self.columns, 96)
        parts = tuple(place.pick(count, 40) for count in self.parts)
        adapters, slots = place.pick(self.adapters, min(self.adapters, 5)), place.pick(self.slots, 6)
        layer = None if by_ids else 0
        matrix = AdaptedMatrix(layer, self.matrix, self.fields, parts, columns, by_column=by_ids)
        limits = StepLimits(rows, rows, 8192, 16, place.processors, 1, adapters=slots, adapter_rank=MAX_RANK)
        shapes = adapter_shapes(CONFIG, limits, place.dtype).items()
        buffers = SimpleNamespace(**{name: place.empty(*shape.shape, dtype=shape.dtype) for name, shape in shapes})
        device = DeviceAdapters(
            [matrix], cast("StepBuffers[Tensor]", buffers), slots=slots, max_rank=MAX_RANK, dtype=place.dtype,
            device=place.device,
        )  # fmt: skip
        rng = np.random.default_rng(0)
        given = [self._adapter(rng, matrix) for _ in range(adapters)]
        for slot, one in enumerate(given):
            device.load(slot, device.prepare(one))
        step, adapter = step_of(place, rows, adapters)
        x = place.ints([n % columns for n in range(rows)]) if by_ids else place.randn(rows, columns)
        base = place.randn(rows, sum(parts), dtype=torch.float32 if by_ids else None)
        out = place.empty(rows, sum(parts), dtype=base.dtype)

        def launch() -> None:
            out.copy_(base)
            device.begin(step, adapter)
            if by_ids:
                device.add_embedding(x, out, 2.0)
            else:
                device.add(0, self.matrix, x, out)

        def pairs() -> list[Pair]:
            change = partial(_changed, place, matrix, given, adapter.tolist(), x)
            return [(out, base.float() + (2.0 * change() if by_ids else change()))]

        bound = rounding(place.dtype, 2.0)
        return Trial(launch, pairs, bound, size_of(x, out, out) + adapters * padded(self.rank) * matrix.rank_elements)

    def _adapter(self, rng: np.random.Generator, matrix: AdaptedMatrix) -> Adapter:
        def change(count: int) -> LowRank:
            down = rng.standard_normal((self.rank, matrix.columns), np.float32) / np.float32(matrix.columns**0.5)
            up = rng.standard_normal((count, self.rank), np.float32) / np.float32(self.rank**0.5)
            return LowRank(down, up)

        changes = {field: change(count) for field, count in zip(matrix.fields, matrix.rows, strict=True)}
        embedding = changes.pop("embedding", None)
        return Adapter("", (changes,), embedding)


def step_of(place: Place, rows: int, adapters: int) -> tuple[Inputs, Tensor]:
    """A step of one token of each row, and the slots of their adapters: every ninth row has none."""
    none = place.ints([])
    step = Inputs(none, place.ints(range(rows + 1)), *(none,) * 8, tokens=rows, kind="decodes")
    return step, place.ints([-1 if row % 9 == 8 else row % adapters for row in range(rows)])


def _changed(place: Place, matrix: AdaptedMatrix, adapters: list[Adapter], slots: list[int], x: Tensor) -> Tensor:
    """The changes of all rows, by numbers in the type of activations."""
    found = torch.zeros(len(slots), sum(matrix.rows), device=place.device)

    for slot, one in enumerate(adapters):
        rows = [row for row, own in enumerate(slots) if own == slot]
        start = 0
        for field, count in zip(matrix.fields, matrix.rows, strict=True):
            change = one.embedding if field == "embedding" else one.layers[0][field]
            if change is None:
                continue
            down, up = place.numbers(change.down), place.numbers(change.up)
            products = down.T[x[rows].long()] if matrix.by_column else x[rows].float() @ down.T
            found[rows, start : start + count] = products @ up.T
            start += count
    return found


QKV: Callable[..., AdaptedRows] = partial(AdaptedRows, "qkv", ("q", "k", "v"), (4096, 1024, 1024), 4096)
GATE_UP: Callable[..., AdaptedRows] = partial(AdaptedRows, "gate_up", ("gate", "up"), (14_336, 14_336), 4096)
DOWN: Callable[..., AdaptedRows] = partial(AdaptedRows, "down", ("down",), (4096,), 14_336)
EMBEDDING: Callable[..., AdaptedRows] = partial(AdaptedRows, "embedding", ("embedding",), (4096,), 128_256)
SHAPES = [
    *(made(rows=64, adapters=count) for made in (QKV, GATE_UP, DOWN) for count in (1, 8, 64)),
    QKV(rows=1, adapters=1),
    QKV(rows=64, adapters=8, rank=64),
    *(made(rows=2048, adapters=count) for made in (QKV, GATE_UP, DOWN) for count in (1, 8)),
    EMBEDDING(rows=64, adapters=2, slots=2),
]
QUICK = {"qkv T=64, 8 of rank 16", "down T=2048, 1 of rank 16", "embedding T=64, 2 of rank 16"}
CASES = [Case("adapters", str(shape), shape.prepare, quick=str(shape) in QUICK) for shape in SHAPES]
