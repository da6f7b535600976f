"""Measures each kernel at decode and prefill shapes: time, bytes, operations, and shares of the card's peaks.

The L2 cache is flushed before each launch. Bytes are the minimum traffic, from the cases' own counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from bench.gpu.cases import sampling
from bench.gpu.cases.attention import Attention
from bench.gpu.cases.case import Case, Place, Trial, size_of
from bench.gpu.cases.elementwise import activation, add_norm, norm
from bench.gpu.cases.linear import LAYOUTS, planes
from bench.gpu.experiments.setting import Setting
from bench.gpu.measured_models import MODELS
from bench.gpu.timing import Flush, measured
from bench.lib.results import Item, Row
from octavo_inference.backends.cuda.device import FP8_CAPABILITY
from octavo_inference.backends.cuda.kernels.launch_configs import WORKSPACE
from octavo_inference.backends.cuda.kernels.tuned_configs import find_tiles
from octavo_inference.backends.cuda.linear import DeviceMatrix, Linear
from octavo_inference.models.config import ModelConfig

REPEATS = 30
_SAMPLED = 4
"""Number of `ROWS` measured for the head: no step has more sample rows."""
ROWS = (1, 8, 32, 256, 2048, 8192)
FORMATS = ("dense", "fp8", "int4 q4_0", "int8 q8_0")
DECODES = ((1, 1024), (1, 32_000), (8, 4096), (32, 1024), (32, 8192), (256, 1024), (256, 4096))
PREFILLS = ((2048, 0), (8192, 0), (2048, 30_000))


@dataclass(frozen=True, slots=True)
class Work:
    """A case, and its minimum number of operations."""

    trial: Trial
    operations: int


Prepare = Callable[[], Work]
Shape = tuple[str, str, str, Prepare]
"""Model, kernel, its shape as text, and the function that prepares it."""


def items(setting: Setting) -> Iterator[Item]:
    """In order of importance: products and attention of all models, then small kernels."""
    place = setting.place
    flush = Flush(setting.device)
    for model, kernel, shape, prepare in shapes(setting, place):

        def run(model: str = model, kernel: str = kernel, shape: str = shape, prepare: Prepare = prepare) -> Row:
            return {"model": model, "kernel": kernel, "shape": shape} | timed(setting, prepare(), flush)

        yield Item(f"{model} {kernel} {shape}", run)


def shapes(setting: Setting, place: Place) -> Iterator[Shape]:
    """All measurements."""
    for model in setting.models:
        yield from product_shapes(setting, place, model)
        yield from attention_shapes(setting, place, model)
    for model in setting.models:
        for m in setting.pick(ROWS, (17,)):
            for name in ("rms_norm", "add_rms_norm", "silu_mul"):
                yield model, name, f"{m} rows", partial(elementwise, place, name, m, MODELS[model])
    for case in sampling.CASES:
        if not setting.interpret or case.variant.endswith("greedy"):
            yield "any", case.kernel, case.variant, partial(of_case, place, case)


def product_shapes(setting: Setting, place: Place, model: str) -> Iterator[Shape]:
    """A layer's matrices in each format, and the head."""
    rows = setting.pick(ROWS, (17,))
    for name, (n, k) in products(MODELS[model]).items():
        head = name == "head"
        for stored in ("dense",) if head else setting.pick(FORMATS, ("dense", "int4 q4_0")):
            for m in rows[:_SAMPLED] if head else rows:
                yield (
                    model,
                    f"{name} {stored}",
                    f"{m}x{n}x{k}",
                    partial(product, setting, place, model, name, stored, m),
                )


def attention_shapes(setting: Setting, place: Place, model: str) -> Iterator[Shape]:
    """Decodes and prefills over each type of pool that the card supports."""
    config = MODELS[model]
    for pool in setting.pick(("dense", "fp8", "int8") if float8(setting) else ("dense", "int8"), ("dense",)):
        for batch, context in setting.pick(DECODES, ((2, 9),)):
            prepare = partial(attention, place, config, batch, 1, context - 1, pool)
            yield model, f"attention {pool}", f"decode {batch}x{context}", prepare
        for tokens, before in setting.pick(PREFILLS, ((5, 3),)):
            prepare = partial(attention, place, config, 1, tokens, before, pool)
            yield model, f"attention {pool}", f"prefill {tokens} after {before}", prepare


def float8(setting: Setting) -> bool:
    """Return True if the card's kernels support float8 keys."""
    return setting.device.type == "cuda" and torch.cuda.get_device_capability() >= FP8_CAPABILITY


def timed(setting: Setting, work: Work, flush: Callable[[], object]) -> Row:
    """Figures of a launch."""
    trial, operations = work.trial, work.operations
    seconds = measured(setting.timer, trial.launch, setting.pick(REPEATS, 1), flush)
    median = statistics.median(seconds)
    row: Row = {"us": median * 1e6, "least_us": min(seconds) * 1e6, "bytes": trial.moved, "operations": operations}
    return row | setting.shares(trial.moved, operations, median)


def products(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Rows and columns of a layer's fused matrices, and of the head."""
    heads = (config.heads + 2 * config.kv_heads) * config.head_dim
    return {
        "qkv": (heads, config.hidden),
        "o": (config.hidden, config.heads * config.head_dim),
        "gate_up": (2 * config.intermediate, config.hidden),
        "down": (config.hidden, config.intermediate),
        "head": (config.vocab, config.hidden),
    }


def product(setting: Setting, place: Place, model: str, name: str, stored: str, m: int) -> Work:
    """A product as the engine runs it; the matrix is kept for the next number of rows."""
    n, k = (place.pick(size, small) for size, small in zip(products(MODELS[model])[name], (77, 64), strict=True))
    linear = setting.keep.get((model, name, stored), lambda: linear_of(place, stored, n, k))
    # Logits are float32, other outputs have the activations' type.
    x, out = place.randn(m, k), place.empty(m, n, dtype=torch.float32 if name == "head" else None)
    [matrix] = linear.parts
    kept = [t for t in (matrix.values, matrix.scales, matrix.minimums) if t is not None]
    return Work(Trial(lambda: linear(x, out), list, 0.0, size_of(x, out, *kept)), 2 * m * n * k)


def linear_of(place: Place, stored: str, n: int, k: int) -> Linear:
    """A random matrix on the device."""
    layout, found = LAYOUTS[stored], planes(place, LAYOUTS[stored], n, k)
    matrix = DeviceMatrix(layout, k, found.values, found.scales, found.minimums)
    gpu = place.device.type == "cuda"
    # As in the server: with float8 weights the activations are float8 where the GPU multiplies it, and tiles are the
    # GPU's own.
    eight = gpu and stored == "fp8" and torch.cuda.get_device_capability(place.device) >= FP8_CAPABILITY
    return Linear(
        (matrix,),
        (None,),
        place.empty(WORKSPACE, dtype=torch.float32),
        fp8_activations=place.empty(max(ROWS) * k, dtype=torch.uint8) if eight else None,
        tiles=find_tiles(torch.cuda.get_device_name(place.device) if gpu else "interpreter"),
    )


def attention(place: Place, config: ModelConfig, batch: int, queries: int, before: int, pool: str) -> Work:
    """Attention of one layer; decodes are split as the engine splits them."""
    shape = Attention(
        config.heads, config.kv_heads, config.head_dim, ((queries, before),) * batch, pool=pool, split=queries == 1
    )
    pairs = batch * (queries * before + queries * (queries + 1) // 2)
    return Work(shape.prepare(place), 4 * config.heads * config.head_dim * pairs)


def of_case(place: Place, case: Case) -> Work:
    """A kernel as `check` runs it; its operations are negligible."""
    return Work(case.prepare(place), 0)


def elementwise(place: Place, name: str, m: int, config: ModelConfig) -> Work:
    """A kernel that only copies its input."""
    hidden, inner = place.pick(config.hidden, 48), place.pick(config.intermediate, 80)
    if name == "silu_mul":
        return Work(activation(place, "silu", m, inner), 4 * m * inner)
    if name == "rms_norm":
        return Work(norm(place, m, hidden), 4 * m * hidden)
    return Work(add_norm(place, m, hidden, output_norm=False), 5 * m * hidden)
