"""One prompt at a time through the engine: time to the first token against its length."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from functools import partial

from journal import Item, Row
from roofline import prefill_operations
from serving import Load, answer, loaded
from shapes import config_of

from octavo_inference.engine.factory import LoadedEngine
from parts.setting import Setting

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
REPEATS = 5


def items(setting: Setting) -> Iterator[Item]:
    """Every length of every model."""
    for model in setting.models:
        for tokens in setting.pick(LENGTHS, (20,)):
            yield Item(f"{model} {tokens}", partial(run, setting, model, tokens))


def engine(setting: Setting, model: str) -> LoadedEngine:
    """With room for the longest prompt and little else."""
    longest = max(LENGTHS) + 64
    return setting.keep.get(model, lambda: loaded(setting, model, max_model_len=longest, max_running_requests=8))


def run(setting: Setting, model: str, tokens: int) -> Row:
    """Median of some; in front of each the prefix cache is emptied."""
    found, config = engine(setting, model).engine, config_of(model, interpret=setting.interpret)
    rng = random.Random(tokens)
    load = Load([[rng.randrange(config.vocab) for _ in range(tokens)]], [1])
    answer(found, load, 0.0)
    seconds = [answer(found, load, 0.0) for _ in range(setting.pick(REPEATS, 1))]
    median = statistics.median(seconds)
    shares = setting.shares(0, prefill_operations(config, tokens) / setting.ranks, median)
    row: Row = {
        "ttft_ms": median * 1e3,
        "least_ms": min(seconds) * 1e3,
        "most_ms": max(seconds) * 1e3,
        "prompt_tokens_per_s": tokens / median,
        "step_tokens": found.limits.max_batched_tokens,
    }
    row |= {name: share for name, share in shares.items() if "flops" in name}
    return row | {"model": model, "tokens": tokens}
