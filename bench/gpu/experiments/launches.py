"""The host's time per step, kernel by kernel and as a graph: of decodes, and of decodes with a prompt's chunk.

The same backend runs both, one step ahead of the device, as the engine does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench.gpu.experiments.decode import Shape, enter
from bench.gpu.experiments.setting import Setting
from bench.gpu.serving import graphs, loaded
from bench.gpu.steps import step_of
from bench.lib.results import Item, Row
from octavo_inference.core.model_input import RowStep

ROWS, CHUNK, CONTEXT = 64, 448, 512
STEPS, SETTLED = 40, 8


def items(setting: Setting) -> Iterator[Item]:
    """Decodes and mixed steps of each model, as graphs and without."""
    for model in setting.models:
        for chunk in (0, setting.pick(CHUNK, 5)):
            for graph in (True, False):
                key = f"{model} {'mixed' if chunk else 'decode'} {'graph' if graph else 'eager'}"
                yield Item(key, partial(run, setting, model, chunk, graph=graph))


def run(setting: Setting, model: str, chunk: int, *, graph: bool) -> Row:
    """Median milliseconds of the host per launch of a step, and the number of kernels in it."""
    rows, steps, settled = setting.pick((ROWS, STEPS, SETTLED), (2, 2, 1))
    context = setting.pick(CONTEXT, 9)
    sizes: dict[str, Any] = {"max_running_requests": 2 * rows, "max_batched_tokens": 2048}
    backend: Any = setting.keep.get(model, lambda: loaded(setting, model, **sizes)).engine.backend
    width = -(-(max(context, chunk) + 2 * (steps + settled)) // backend.block_size)
    shape = Shape(rows + bool(chunk), context, width)
    before, kept = graphs(backend), backend.graphs
    backend.graphs = kept if graph else None
    try:
        enter(backend, shape)
        host_times(backend, shape, chunk, settled)
        begin = setting.timer.mark()
        host = host_times(backend, shape, chunk, steps)
        end = setting.timer.mark()
        setting.timer.wait()
        count = kernels_of(setting, backend, shape, chunk)
    finally:
        backend.graphs = kept
    median = statistics.median(host)
    row: Row = {"model": model, "step": "mixed" if chunk else "decode", "way": "graph" if graph else "eager"}
    row |= {"host_ms": median * 1e3, "host_ms_most": max(host) * 1e3, "kernels": count}
    row |= {"step_ms": setting.timer.between(begin, end) / steps * 1e3, "us_a_kernel": median * 1e6 / max(count, 1)}
    return row | {"replays": graphs(backend, before)["replays"]}


def host_times(backend: Any, shape: Shape, chunk: int, steps: int) -> list[float]:
    """Seconds of each launch on the host."""
    waiting, found = None, []
    for number in range(steps):
        step = mixed(shape, chunk, number)
        begin = time.perf_counter()
        launched = backend.launch(step)
        found.append(time.perf_counter() - begin)
        if waiting is not None:
            waiting.collect()
        waiting = launched
    if waiting is not None:
        waiting.collect()
    return found


def mixed(shape: Shape, chunk: int, number: int) -> RowStep:
    """A step of decodes; with a chunk, the last row computes this many tokens of its prompt."""
    if not chunk:
        return shape.at(number, [])
    decodes = shape.batch - 1
    return step_of([*[1] * decodes, chunk], [*[shape.context + number] * decodes, chunk])


def kernels_of(setting: Setting, backend: Any, shape: Shape, chunk: int) -> int:
    """Number of kernels that a step runs on the device; 0 without one."""
    if setting.device.type != "cuda":
        return 0
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        backend.launch(mixed(shape, chunk, 0)).collect()
        setting.timer.wait()
    on_device = torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]  # not in its __all__
    return sum(event.device_type == on_device for event in seen.events() or [])
