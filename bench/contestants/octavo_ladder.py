"""One step of the ladder: python octavo_ladder.py MODEL [NAME=VALUE ...], the names being those of `LLM`."""

from __future__ import annotations

import random
import statistics
import sys
import time
from importlib.metadata import version
from typing import Any

from loads import SEED, ids
from octavo_latency import p99, request
from octavo_offline import setting
from serve import serve

from octavo_inference import LLM
from octavo_inference.core.engine import Engine

GROUPS, COMMON = 4, 512


def prompts(count: int) -> list[tuple[list[int], int]]:
    """Prompts that begin like every fourth one, with 20 to 150 tokens of their own, and their answers' lengths."""
    rng = random.Random(SEED)
    beginnings = [ids(rng, COMMON) for _ in range(GROUPS)]
    return [([*beginnings[i % GROUPS], *ids(rng, rng.randint(20, 150))], rng.randint(20, 150)) for i in range(count)]


def load(engine: Engine, count: int) -> dict[str, Any]:
    """All at once until the last one has ended. Times as the step loop sees them."""
    work = prompts(count)
    engine.reset_cache()
    hits = engine.scheduler.hit_tokens
    begin = time.perf_counter()
    for i, (tokens, answer) in enumerate(work):
        engine.submit(request(f"request-{i}", tokens, answer))
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    gaps: list[float] = []
    produced = most = 0
    while engine.has_work:
        outputs = engine.step()
        now = time.perf_counter() - begin
        produced += sum(len(output.tokens) for output in outputs)
        most = max(most, len(outputs))
        for output in outputs:
            if output.id in last:
                gaps.append(now - last[output.id])
            first.setdefault(output.id, now)
            last[output.id] = now
    seconds = time.perf_counter() - begin
    if produced != sum(answer for _, answer in work):
        sys.exit(f"{produced} tokens, wanted {sum(answer for _, answer in work)}")
    return {
        "seconds": round(seconds, 3),
        "tokens_per_second": round(produced / seconds, 2),
        "first_token_s": round(statistics.median(first.values()), 3),
        "inter_token_p99_ms": round(1e3 * p99(gaps), 2),
        "most_at_once": most,
        "prompt_tokens_computed": sum(len(tokens) for tokens, _ in work) - (engine.scheduler.hit_tokens - hits),
    }


def main() -> None:
    started = time.time()
    engine = LLM(sys.argv[1], **dict(map(setting, sys.argv[2:]))).engine
    versions = {"octavo": version("octavo"), "backend": engine.backend.name}
    serve(started, versions, {"load": lambda count: load(engine, int(count))})


if __name__ == "__main__":
    main()
