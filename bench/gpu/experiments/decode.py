"""Measures decode steps against the bytes that they must read: weights once, and K and V of every sequence.

Steps are launched on the backend as the engine does, one ahead, but without an engine. Rows point into a pool of zeros,
so that 32k tokens of context need no prefill.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from bench.gpu.experiments.setting import Setting
from bench.gpu.measured_models import Stored, config_of, table_bytes
from bench.gpu.roofline import decode_bytes
from bench.gpu.serving import graphs, loaded
from bench.gpu.steps import entered, step_of
from bench.lib.results import Item, Row
from octavo_inference.backends.cuda.device import FP8_CAPABILITY
from octavo_inference.backends.cuda.kernels.launch_configs import WORKSPACE
from octavo_inference.core.model_input import RowChange, RowStep
from octavo_inference.engine.factory import LoadedEngine

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (512, 2048, 8192, 32_000)
STEPS, SETTLED, ROUNDS = 40, 8, 3


@dataclass(frozen=True, slots=True)
class Way:
    """Types of weights, K and V. The backend quantizes bf16 weights to "fp8" while loading."""

    weights: str
    kv: str

    @property
    def stored(self) -> Stored:
        """The format of the model's weights before loading."""
        return "int4" if self.weights == "int4" else "bf16"

    @property
    def settings(self) -> dict[str, str]:
        """Arguments of `EngineSettings`."""
        return {"kv_dtype": self.kv, "quantization": "fp8" if self.weights == "fp8" else "auto"}

    def kv_element(self, head_dim: int, dense: int) -> float:
        """Bytes per element, including int8's scale of each head."""
        return {"auto": dense, "fp8": 1, "int8": 1 + 4 / head_dim}[self.kv]


def items(setting: Setting) -> Iterator[Item]:
    """Every batch at a short context for each kind of weights, then contexts for each kind of pool."""
    batches, contexts = setting.pick(BATCHES, (2,)), setting.pick(CONTEXTS, (20,))
    for model in setting.models:
        for way in ways(setting):
            few = way.kv != "auto"
            for context in contexts if way.weights == "bf16" else contexts[:1]:
                for batch in batches[::3] if few else batches:
                    key = f"{model} {way.weights} KV {way.kv} {batch}x{context}"
                    yield Item(key, partial(run, setting, model, way, batch, context))


def ways(setting: Setting) -> list[Way]:
    """The combinations that the card supports, by importance.

    Several ranks read a checkpoint, which is bf16, and use one engine.
    """
    if setting.ranks > 1:
        return [Way("bf16", "auto")]
    if setting.interpret:
        return [Way("bf16", "int8")]
    float8 = setting.device.type == "cuda" and torch.cuda.get_device_capability() >= FP8_CAPABILITY
    pools = ("fp8", "int8") if float8 else ("int8",)
    return [*(Way(weights, "auto") for weights in ("bf16", "fp8", "int4")), *(Way("bf16", pool) for pool in pools)]


def run(setting: Setting, model: str, way: Way, batch: int, context: int) -> Row:
    """Measure one shape. Refused where its K and V do not fit."""

    def make() -> LoadedEngine:
        sizes = {"max_model_len": max(CONTEXTS) + 256, "max_running_requests": max(BATCHES)}
        return loaded(setting, model, way.stored, **sizes, **way.settings)

    found = setting.keep.get((model, way), make)
    config, backend = config_of(model, interpret=setting.interpret), found.engine.backend
    row: Row = {"model": model, "weights": way.weights, "kv": way.kv, "batch": batch, "context": context}
    steps, settled, rounds = setting.pick((STEPS, SETTLED, ROUNDS), (2, 1, 1))
    width = -(-(context + steps + settled) // backend.block_size)
    if batch * width > backend.num_blocks:
        return row | {"verdict": "refused", "why": f"{batch * width} blocks of K and V, {backend.num_blocks} fit"}
    shape = Shape(batch, context, width)
    before = graphs(backend)
    enter(backend, shape)
    drive(backend, shape, settled)
    seconds, host = [], []
    for _ in range(rounds):
        begin, launching = setting.timer.mark(), drive(backend, shape, steps)
        end = setting.timer.mark()
        setting.timer.wait()
        seconds.append(setting.timer.between(begin, end) / steps)
        host.append(launching / steps)
    median = statistics.median(seconds)
    weights = 0 if found.memory is None else found.memory.weights - 4 * WORKSPACE - table_bytes(config, way.stored)
    element = way.kv_element(config.head_dim, 4 if setting.interpret else 2)
    moved = decode_bytes(config, weights * setting.ranks, batch, context + steps // 2, element)
    figures: Row = graphs(backend, before) | {"launches": 1 + settled + rounds * steps}
    figures |= {"step_ms": median * 1e3, "least_ms": min(seconds) * 1e3, "tokens_per_s": batch / median}
    figures |= {"gb": moved / 1e9, "host_ms": statistics.median(host) * 1e3}
    shares = setting.shares(moved / setting.ranks, 0, median)
    return row | figures | {name: share for name, share in shares.items() if "bandwidth" in name}


@dataclass(frozen=True, slots=True)
class Shape:
    """A number of sequences, their tokens, the blocks of each, and adapters that they use in turns."""

    batch: int
    context: int
    width: int
    adapters: int = 0

    def at(self, step: int, changes: list[RowChange]) -> RowStep:
        """A decode step: one token of each sequence."""
        found = step_of([1] * self.batch, [self.context + step] * self.batch, changes)
        if not self.adapters:
            return found
        return replace(found, adapter=np.arange(self.batch, dtype=np.int32) % self.adapters)


def enter(backend: Any, shape: Shape) -> None:
    """Send the rows' blocks, last tokens and sampling (greedy) in a step of their own."""
    changes: list[RowChange] = []
    for row in range(shape.batch):
        blocks = np.arange(row * shape.width, (row + 1) * shape.width, dtype=np.int32)
        changes += entered(row, np.array([row + 1], np.int32), shape.context - 1, blocks)
    backend.launch(shape.at(0, changes)).collect()


def drive(backend: Any, shape: Shape, steps: int) -> float:
    """Decode with one step launched ahead. Returns the seconds in which the host did not wait."""
    waiting, waited, begin = None, 0.0, time.perf_counter()
    for step in range(steps):
        launched = backend.launch(shape.at(step, []))
        asked = time.perf_counter()
        if waiting is not None:
            waiting.collect()
        waited += time.perf_counter() - asked
        waiting = launched
    asked = time.perf_counter()
    if waiting is not None:
        waiting.collect()
    end = time.perf_counter()
    return end - begin - waited - (end - asked)
