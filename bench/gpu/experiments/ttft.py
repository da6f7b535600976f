"""One prompt at a time through the engine: time to first token over its length."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

from bench.gpu.experiments.setting import Setting
from bench.gpu.measured_models import config_of
from bench.gpu.roofline import prefill_operations
from bench.gpu.serving import Load, answered, loaded
from bench.lib.results import Item, Row

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
REPEATS = 5


def items(setting: Setting) -> Iterator[Item]:
    """Every length of every model."""
    for model in setting.models:
        for tokens in setting.pick(LENGTHS, (20,)):
            yield Item(f"{model} {tokens}", partial(run, setting, model, tokens))


def run(setting: Setting, model: str, tokens: int) -> Row:
    """Median of some requests, each with an empty prefix cache."""
    sizes: dict[str, Any] = {
        "max_model_len": max(LENGTHS) + 64,
        "max_running_requests": 8,
    }  # enough for the longest prompt, and little else
    engine = setting.keep.get(model, lambda: loaded(setting, model, **sizes)).engine
    config, rng = config_of(model, interpret=setting.interpret), random.Random(tokens)
    load = Load([[rng.randrange(config.vocab) for _ in range(tokens)]], [1])
    answered(engine, load, 0.0)
    seconds = [answered(engine, load, 0.0).seconds for _ in range(setting.pick(REPEATS, 1))]
    median = statistics.median(seconds)
    shares = setting.shares(0, prefill_operations(config, tokens) / setting.ranks, median)
    row: Row = {"model": model, "tokens": tokens, "ttft_ms": median * 1e3}
    row |= {"least_ms": min(seconds) * 1e3, "most_ms": max(seconds) * 1e3, "prompt_tokens_per_s": tokens / median}
    row |= {"step_tokens": engine.limits.max_batched_tokens}
    return row | {name: share for name, share in shares.items() if "flops" in name}
