"""Cases of adapters of experts: choices by slot and expert, and the two products of their changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import cast

import numpy as np
from torch import Tensor

from bench.gpu.cases.adapters import CONFIG, MAX_RANK, step_of
from bench.gpu.cases.case import Case, Pair, Place, Trial, rounding, size_of
from bench.gpu.cases.experts import GPT_OSS, QWEN3_30B, Mixture, choices
from octavo_inference.backends.cuda.adapter_layout import AdaptedMatrix, padded
from octavo_inference.backends.cuda.adapters import DeviceAdapters
from octavo_inference.backends.cuda.buffers import StepBuffers, StepLimits, adapter_shapes
from octavo_inference.models.adapter import Adapter, LowRank
from octavo_inference.models.layers import Experts

_SLOTS = 8


@dataclass(frozen=True, slots=True)
class AdaptedChoices:
    """Choices of tokens, each with one of some adapters of a rank: gate and up, or with `down` the other product."""

    mixture: Mixture
    tokens: int
    adapters: int
    down: bool = False
    rank: int = 8

    def __str__(self) -> str:
        name = "down" if self.down else "gate_up"
        return f"{self.mixture.name} T={self.tokens} {name}, {self.adapters} of rank {self.rank}"

    def prepare(self, place: Place) -> Trial:
        """Prepare the trial: choices are sorted, then both products are launched."""
        count, chosen = place.pick(self.mixture.count, 3), place.pick(self.mixture.chosen, 2)
        hidden, inner = place.pick(self.mixture.hidden, 96), place.pick(self.mixture.inner, 40)
        tokens, adapters = (
            place.pick(self.tokens, min(self.tokens, 13)),
            place.pick(self.adapters, min(2, self.adapters)),
        )
        slots = place.pick(_SLOTS, 3)
        matrices = [
            AdaptedMatrix(0, "experts", (f"experts.gate.{n}", f"experts.up.{n}"), (inner, inner), hidden, chosen=chosen)
            for n in range(count)
        ] + [
            AdaptedMatrix(0, "experts_down", (f"experts.down.{n}",), (hidden,), inner, chosen=chosen)
            for n in range(count)
        ]
        own = matrices[count:] if self.down else matrices[:count]
        config = replace(CONFIG, hidden=hidden, experts=Experts(count, chosen, inner))
        limits = StepLimits(tokens, tokens, 8192, 16, place.processors, 1, adapters=slots, adapter_rank=MAX_RANK)
        shapes = adapter_shapes(config, limits, place.dtype).items()
        buffers = SimpleNamespace(**{name: place.empty(*shape.shape, dtype=shape.dtype) for name, shape in shapes})
        device = DeviceAdapters(
            matrices, cast("StepBuffers[Tensor]", buffers), slots=slots, max_rank=MAX_RANK, dtype=place.dtype,
            device=place.device,
        )  # fmt: skip
        given = [] if place.device.type == "meta" else [self._adapter(seed, matrices) for seed in range(adapters)]
        for slot, one in enumerate(given):
            device.load(slot, device.prepare(one))
        step, adapter = step_of(place, tokens, adapters)
        ids = choices(place, tokens, replace(self.mixture, count=count, chosen=chosen))
        x = place.randn(ids.numel() if self.down else tokens, own[0].columns)
        base = place.randn(ids.numel(), sum(own[0].rows))
        out = place.empty(*base.shape)

        def launch() -> None:
            out.copy_(base)
            device.begin(step, adapter)
            device.begin_choices(0, ids, count)
            device.add_choices(0, own[0].name, x, out, experts=count, new=not self.down)

        def pairs() -> list[Pair]:
            expected = base.float().clone()
            sharers = ids.numel() // len(x)
            for choice, expert in enumerate(ids.flatten().tolist()):
                slot = int(adapter[choice // chosen])
                if slot < 0:
                    continue
                start = 0
                for field, rows in zip(own[expert].fields, own[expert].rows, strict=True):
                    part = given[slot].layers[0][field]
                    down, up = (place.numbers(values) for values in (part.down, part.up))
                    change = up @ (down @ x[choice // sharers].float())
                    before = expected[choice, start : start + rows] if self.down else 0.0
                    expected[choice, start : start + rows] = before + change
                    start += rows
            return [(out, expected)]

        read = adapters * sum(padded(self.rank) * chosen * matrix.rank_elements for matrix in own)
        return Trial(launch, pairs, rounding(place.dtype, 2.0), size_of(x, out, out) + read * out.element_size())

    def _adapter(self, seed: int, matrices: list[AdaptedMatrix]) -> Adapter:
        rng = np.random.default_rng(seed)

        def change(rows: int, columns: int) -> LowRank:
            down = rng.standard_normal((self.rank, columns), np.float32) / np.float32(columns**0.5)
            return LowRank(down, rng.standard_normal((rows, self.rank), np.float32) / np.float32(self.rank**0.5))

        parts = {f: change(rows, m.columns) for m in matrices for f, rows in zip(m.fields, m.rows, strict=True)}
        return Adapter("", (parts,))


SHAPES = [
    AdaptedChoices(mixture, tokens, adapters, down)
    for mixture in (QWEN3_30B, GPT_OSS)
    for tokens, adapters in ((1, 1), (64, 8), (2048, 1))
    for down in (False, True)
]
QUICK = {"Qwen3-30B-A3B T=64 gate_up, 8 of rank 8", "Qwen3-30B-A3B T=2048 down, 1 of rank 8"}
CASES = [Case("adapters of experts", str(shape), shape.prepare, quick=str(shape) in QUICK) for shape in SHAPES]
