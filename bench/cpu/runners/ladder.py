"""One step of the ladder: python -m bench.cpu.runners.ladder MODEL [NAME=VALUE ...], names as of `LLM`."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import Counter
from importlib.metadata import version
from itertools import chain
from typing import Any

from bench.cpu.runners.octavo_offline import setting
from bench.cpu.runners.serve import serve
from bench.lib.loads import SEED, ids, p99
from octavo_inference import LLM
from octavo_inference.core.engine import Engine
from octavo_inference.tools.bench.loads import answer

GROUPS, COMMON = 4, 512


def load(engine: Engine, count: int) -> dict[str, Any]:
    """Prompts that share a prefix with every fourth one, plus 20 to 150 tokens each; 20 to 150 output tokens."""
    rng = random.Random(SEED)
    beginnings = [ids(rng, COMMON) for _ in range(GROUPS)]
    work = [([*beginnings[i % GROUPS], *ids(rng, rng.randint(20, 150))], rng.randint(20, 150)) for i in range(count)]
    engine.reset_cache()
    hits = engine.scheduler.hit_tokens
    found = answer(engine, [prompt for prompt, _ in work], [length for _, length in work])
    return {
        "seconds": round(found.seconds, 3),
        "tokens_per_second": round(sum(map(len, found.tokens)) / found.seconds, 2),
        "first_token_s": round(statistics.median(found.first), 3),
        "inter_token_p99_ms": round(1e3 * p99(found.gaps), 2),
        # All tokens of a step arrive at the same time.
        "most_at_once": max(Counter(chain.from_iterable(found.times)).values()),
        "prompt_tokens_computed": sum(len(prompt) for prompt, _ in work) - (engine.scheduler.hit_tokens - hits),
    }


def main() -> None:
    started = time.time()
    engine = LLM(sys.argv[1], **dict(map(setting, sys.argv[2:]))).engine
    versions = {"octavo": version("octavo"), "backend": engine.backend.name}
    serve(started, versions, {"load": lambda count: load(engine, int(count))})


if __name__ == "__main__":
    main()
