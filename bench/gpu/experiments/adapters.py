"""Measures decode steps whose sequences have adapters against steps of the model itself.

Steps are those of `decode`. The slots hold one random adapter, each its own copy, so that every adapter is read from
memory of its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from bench.gpu.experiments.decode import ROUNDS, SETTLED, STEPS, Shape, drive, enter
from bench.gpu.experiments.setting import Setting
from bench.gpu.measured_models import config_of, random_model
from bench.gpu.serving import graphs, loaded
from bench.lib.results import Item, Row
from octavo_inference.engine.factory import LoadedEngine
from octavo_inference.models.adapter import PLAIN_FIELDS, Adapter, LowRank
from octavo_inference.models.weights import Weights, part_tensors

BATCH, CONTEXT, RANK = 64, 512, 16
COUNTS = (1, 8, 64)
"""Adapters among the sequences of a step."""


def items(setting: Setting) -> Iterator[Item]:
    """Each number of adapters, for each model."""
    for model in setting.models:
        for count in setting.pick(COUNTS, (1, 2)):
            yield Item(f"{model} {count} adapters", partial(run, setting, model, count))


def run(setting: Setting, model: str, count: int) -> Row:
    """Measure steps with this many adapters, and without, in turns."""
    batch, rank, most = setting.pick((BATCH, RANK, max(COUNTS)), (3, 8, 2))

    def make() -> LoadedEngine:
        found = loaded(
            setting, model, max_running_requests=batch, max_model_len=2 * CONTEXT, max_loaded_adapters=most,
            max_adapter_rank=rank,
        )  # fmt: skip
        backend: Any = found.engine.backend
        weights = random_model(model, config_of(model, interpret=setting.interpret)).weights
        prepared = backend.prepare_adapter(random_adapter(weights, rank))
        for slot in range(most):
            backend.load_adapter(slot, prepared)
        return found

    backend = setting.keep.get((model, "adapters"), make).engine.backend
    context = setting.pick(CONTEXT, 20)
    steps, settled, rounds = setting.pick((STEPS, SETTLED, ROUNDS), (2, 1, 1))
    width = -(-(context + steps + settled) // backend.block_size)
    before = graphs(backend)
    seconds: dict[int, list[float]] = {0: [], count: []}
    enter(backend, Shape(batch, context, width))
    for adapters in (0, count):
        drive(backend, Shape(batch, context, width, adapters), settled)
    for _ in range(rounds):
        for adapters, found in seconds.items():
            begin = setting.timer.mark()
            drive(backend, Shape(batch, context, width, adapters), steps)
            end = setting.timer.mark()
            setting.timer.wait()
            found.append(setting.timer.between(begin, end) / steps)
    plain, adapted = (statistics.median(found) for found in seconds.values())
    row: Row = {"model": model, "adapters": count, "rank": rank, "batch": batch, "context": context}
    figures: Row = {"step_ms": adapted * 1e3, "plain_ms": plain * 1e3, "of_plain": adapted / plain}
    return row | figures | graphs(backend, before)


def random_adapter(weights: Weights, rank: int) -> Adapter:
    """Changes of all matrices of attention and MLP, a hundredth of a matrix's numbers."""
    rng = np.random.default_rng(0)

    def change(rows: int, columns: int) -> LowRank:
        down = rng.standard_normal((rank, columns), np.float32) / np.float32(columns**0.5)
        return LowRank(down, rng.standard_normal((rows, rank), np.float32) * np.float32(0.01))

    layers = tuple(
        {name: change(*tensor.shape) for name, tensor in part_tensors(layer) if name in PLAIN_FIELDS}
        for layer in weights.layers
    )
    return Adapter("random", layers)
