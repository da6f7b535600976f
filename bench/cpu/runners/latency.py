"""Inter-token times and times to first token, measured at the engine's step loop."""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
from typing import Any

from bench.lib.loads import SEED, ids, p99
from octavo_inference import SamplingParams
from octavo_inference.config.engine import PROFILES
from octavo_inference.core.engine import Engine
from octavo_inference.core.request import Request
from octavo_inference.tools.bench.loads import answer

FOREVER = None  # the model's context length


def request(name: str, tokens: list[int], answer: int | None) -> Request:
    """A greedy request that ends by length only."""
    return Request(id=name, tokens=tokens, sampling=SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True))


def drop(engine: Engine, names: list[str]) -> None:
    """Cancel requests, and run one step so that nothing of them is left."""
    for name in names:
        engine.abort(name)
    engine.step()


def slowdown(quiet: list[float], busy: list[float], first: float) -> dict[str, float]:
    """Inter-token times before and during the prefill of a long prompt, and its time to first token."""
    return {
        "quiet_p99_ms": round(1e3 * p99(quiet), 2),
        "busy_p99_ms": round(1e3 * p99(busy), 2),
        "times_quiet": round(p99(busy) / p99(quiet), 3),
        "long_prompt_first_token_s": round(first, 3),
    }


def slowdown_at_length(quiet: list[float], busy: list[float], later: list[float]) -> dict[str, float]:
    """The same ratio, with the quiet inter-token time of streams as long as they are at each token.

    The streams grow during the prefill, and a step takes longer for it. Between `quiet` before and `later` after the
    prefill, their medians are interpolated.
    """
    begin, end = statistics.median(quiet), statistics.median(later)
    grown = [gap / (begin + (end - begin) * i / len(busy)) for i, gap in enumerate(busy)]
    steady = [gap / begin for gap in quiet] + [gap / end for gap in later]
    return {
        "later_quiet_p99_ms": round(1e3 * p99(later), 2),
        "times_quiet_at_length": round(p99(grown) / p99(steady), 3),
    }


def arrival(engine: Engine, streams: int, prompt: int, quiet_tokens: int) -> dict[str, Any]:
    """`streams` streams decode: inter-token times over `quiet_tokens` steps, and during the prefill of a prompt.

    Afterwards the same number of quiet steps again, because the streams have grown.
    The engine bounds how much prefill slows decoding, as a server does by default. With a slowdown of s, prompts have
    (s - 1) / s of the time. `times_share` is the prompt's time to first token, to its time alone divided by this share.
    """
    ratio = PROFILES["balanced"].prefill_slowdown
    limits = dataclasses.replace(engine.limits, prefill_slowdown=ratio)
    engine = Engine(engine.backend, engine.config, limits, clock=time.perf_counter)
    rng = random.Random(SEED)
    alone = answer(engine, [ids(rng, prompt)], [1]).seconds
    names = [f"stream-{i}" for i in range(streams)]
    for name in names:
        engine.submit(request(name, ids(rng, 128), FOREVER))
    last: dict[str, float] = {}
    while len(last) < streams:
        now = time.perf_counter()
        last |= {output.id: now for output in engine.step()}

    def gaps(until: str | int) -> list[float]:
        """Inter-token times of the streams over this many steps, or until a request has its first token."""
        found: list[float] = []
        steps = 0
        while steps != until:
            outputs = engine.step()
            now = time.perf_counter()
            steps += 1
            for output in outputs:
                if output.id == until:
                    return found
                found.append(now - last.get(output.id, now))
                last[output.id] = now
        return found

    gaps(5)
    quiet = gaps(quiet_tokens)
    engine.submit(request("long", ids(rng, prompt), 1))
    begin = time.perf_counter()
    busy = gaps("long")
    first = time.perf_counter() - begin
    later = gaps(quiet_tokens)
    drop(engine, names)
    return (
        slowdown(quiet, busy, first)
        | slowdown_at_length(quiet, busy, later)
        | {"alone_first_token_s": round(alone, 3), "times_share": round(first * (ratio - 1) / ratio / alone, 3)}
    )


def shared(engine: Engine, requests: int, common: int, alone: int) -> dict[str, Any]:
    """Requests with a shared prefix of `common` tokens: prefill saved in a burst, time to first token alone.

    `alone` requests run one at a time. The first, which computes the prefix, does not count.
    """
    rng = random.Random(time.time_ns())  # new in every round, or an earlier round would speed up this one
    prefix = ids(rng, common)
    prompts = [[*prefix, *ids(rng, rng.randint(20, 100))] for _ in range(requests)]
    caching = engine.limits.prefix_caching
    result: dict[str, Any] = {}
    if caching:
        hits = engine.scheduler.hit_tokens
        result["burst_s"] = round(answer(engine, prompts, [1] * requests).seconds, 3)
        result["saved"] = round(100 * (engine.scheduler.hit_tokens - hits) / sum(map(len, prompts)), 2)
        prefix = ids(rng, common)
        prompts = [[*prefix, *ids(rng, rng.randint(20, 100))] for _ in range(requests)]
    times = [1e3 * answer(engine, [prompt], [1]).seconds for prompt in prompts[: alone + 1]]
    return result | {"first_token_ms": round(statistics.median(times[1:]), 2)}
