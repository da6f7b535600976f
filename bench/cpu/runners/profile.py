"""Milliseconds per part of a step, and the sizes from which the roofline's minimum follows."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from bench.cpu.runners.latency import FOREVER, drop, request
from bench.lib.loads import SEED, ids
from octavo_inference.backends.cpu.backend import CpuBackend
from octavo_inference.core.engine import Engine
from octavo_inference.models.config import ModelConfig

PARTS = ("linears", "attention", "lm_head", "elementwise", "sampling")


def profile(engine: Engine, steps: int, context: int) -> dict[str, Any]:
    """Milliseconds per part: decode at 1, 8 and 64 streams of `context` tokens, prefill of 256 and 512 tokens."""
    result = {f"decode {rows}": decode(engine, rows, steps, context) for rows in (1, 8, 64)}
    for lengths in ((128, 128), (170, 171, 171)):
        result[f"prefill {sum(lengths)}"] = prefill(engine, lengths, max(1, steps // 4))
    return {"steps": result, "model": model(engine) | {"context": context}}


def decode(engine: Engine, rows: int, steps: int, context: int) -> dict[str, float]:
    rng = random.Random(SEED)
    names = [f"stream-{i}" for i in range(rows)]
    for name in names:
        engine.submit(request(name, ids(rng, max(1, context - steps // 2)), FOREVER))
    while len(engine.step()) < rows:
        pass  # prefill takes several steps
    samples = [timed(engine) for _ in range(steps)]
    drop(engine, names)
    return middle(samples)


def prefill(engine: Engine, lengths: tuple[int, ...], steps: int) -> dict[str, float]:
    rng = random.Random(SEED)
    samples = []
    for _ in range(steps):
        for i, length in enumerate(lengths):
            engine.submit(request(f"prompt-{i}", ids(rng, length), 1))
        samples.append(timed(engine))
        while engine.has_work:  # the step budget is below the prompts' sum, so the measured step is the first
            engine.step()
    return middle(samples)


def timed(engine: Engine) -> dict[str, float]:
    """Milliseconds of one step and its parts; `host` is the time outside the native call.

    A launch may run several decode steps: each is their mean.
    """
    backend = engine.backend
    assert isinstance(backend, CpuBackend)  # noqa: S101 (the only one that measures its parts)
    native = backend.profile
    before = {part: getattr(native, part) for part in PARTS}
    counted, begin = engine.counters.steps().count, time.perf_counter()
    engine.step()
    total = 1e3 * (time.perf_counter() - begin)
    steps = max(1, engine.counters.steps().count - counted)
    parts = {part: 1e3 * (getattr(native, part) - before[part]) / steps for part in PARTS}
    total /= steps
    return {"total": total} | parts | {"host": total - sum(parts.values())}


def middle(samples: list[dict[str, float]]) -> dict[str, float]:
    """Median of each part."""
    return {part: round(statistics.median(s[part] for s in samples), 3) for part in samples[0]}


def model(engine: Engine) -> dict[str, int]:
    """Sizes for the roofline: parameters of linears and head, bytes of packed weights and of a token's KV."""
    config, backend = engine.config, engine.backend
    assert isinstance(config, ModelConfig)  # noqa: S101 (of the native decoder)
    assert isinstance(backend, CpuBackend)  # noqa: S101
    attention = config.hidden * config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    return {
        "linear_parameters": config.layers * (attention + 3 * config.hidden * config.intermediate),
        "head_parameters": config.hidden * config.vocab,
        "weight_bytes": backend.weight_bytes,
        "kv_bytes_per_token": backend.kv_bytes // (backend.num_blocks * backend.block_size),
    }
