"""Octavo's engine in this process on random weights, and the loads that it is given."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from folders import written
from journal import Row
from parts.setting import Setting
from shapes import Stored, config_of, random_model
from timing import Timer
from watch import Times, device_spans, summary, watched

from octavo_inference.config.engine import EngineSettings
from octavo_inference.core.engine import Engine
from octavo_inference.core.request import Request, SamplingParams
from octavo_inference.engine.factory import LoadedEngine, engine_for, load_engine

MANY = 1 << 20


@dataclass(frozen=True, slots=True)
class Load:
    """Prompts that arrive at once, and how many tokens each must give."""

    prompts: list[list[int]]
    outputs: list[int]

    def cut(self, requests: int, out: int) -> Load:
        """Its first requests, each with an output of so many tokens."""
        return Load(self.prompts[:requests], [out] * min(requests, len(self.prompts)))


def nano_vllm(count: int = 256, least: int = 100, most: int = 1024, vocab: int = 10_001) -> Load:
    """The load of nano-vllm's bench.py, drawn in its order from its seed: 142,827 tokens in, 133,966 out."""
    rng = random.Random(0)
    prompts = [[rng.randint(0, vocab - 1) for _ in range(rng.randint(least, most))] for _ in range(count)]
    return Load(prompts, [rng.randint(least, most) for _ in range(count)])


def small_load() -> Load:
    """For an interpreter."""
    return nano_vllm(count=2, least=2, most=3, vocab=100)


def loaded(setting: Setting, name: str, stored: Stored = "bf16", **settings: Any) -> LoadedEngine:
    """An engine on this machine's GPU for a model by name, warm; `settings` as of `EngineSettings`."""
    settings = {"max_running_requests": 256, "max_batched_tokens": 8192, "max_model_len": 4096} | settings
    if setting.interpret:
        settings |= {"max_running_requests": 4, "max_batched_tokens": 16, "max_model_len": 64, "kv_memory": 1 << 18}
    given = EngineSettings(model=name, backend="cuda", profile="throughput", **settings)
    config = config_of(name, interpret=setting.interpret)
    if setting.ranks == 1:
        found = engine_for(given, random_model(name, config, stored))
    else:
        # Ranks are processes: each reads its part of a checkpoint.
        folder = checkpoint(setting, name)
        found = load_engine(replace(given, model=str(folder), tensor_parallel_size=setting.ranks))
    answer(found.engine, Load([[1, 2, 3]], [2]), 0.0)
    # As a server does in idle moments.
    while found.engine.rest():
        pass
    return found


def checkpoint(setting: Setting, name: str) -> Path:
    """A folder of a model's random weights."""
    config = config_of(name, interpret=setting.interpret)
    return written(setting.folder / f"octavo-{name}{'-tiny' * setting.interpret}", config)


def answer(engine: Engine, load: Load, temperature: float, tokens: list[list[int]] | None = None) -> float:
    """Seconds until all answers are there, each as long as the load says. Raises RuntimeError when one is not.

    `tokens`: a list to add the answers to.
    """
    engine.reset_cache()
    begin = time.perf_counter()
    for i, (prompt, out) in enumerate(zip(load.prompts, load.outputs, strict=True)):
        sampling = SamplingParams(temperature=temperature, ignore_eos=True, max_tokens=out, seed=i)
        engine.submit(Request(id=str(i), tokens=prompt, sampling=sampling))
    answers: list[list[int]] = [[] for _ in load.prompts]
    while engine.has_work:
        for output in engine.step():
            if output.error is not None:
                raise RuntimeError(output.error)
            answers[int(output.id)] += output.tokens
    seconds = time.perf_counter() - begin
    given = lengths(answers)
    if given != load.outputs:
        raise RuntimeError(f"{sum(given)} tokens came out, {sum(load.outputs)} were asked for")
    if tokens is not None:
        tokens += answers
    return seconds


def measured_load(engine: Engine, load: Load, temperature: float, timer: Timer, rows: int) -> dict[str, Any]:
    """A load's rate and where its time went; `rows` as for `watch.summary`."""
    before, preempted = graphs(engine.backend), engine.scheduler.preemptions
    with watched(engine, timer) as times:
        seconds = answer(engine, load, temperature)
    return {
        "tokens_per_s": sum(load.outputs) / seconds,
        "wall_s": seconds,
        "in": sum(map(len, load.prompts)),
        "out": sum(load.outputs),
        "preemptions": engine.scheduler.preemptions - preempted,
        **graphs(engine.backend, before),
    } | figures(times, timer, rows)


def figures(times: Times, timer: Timer, rows: int) -> dict[str, Any]:
    """Of what was watched."""
    return summary(times, *device_spans(timer, times), rows)


def graphs(backend: Any, before: Row | None = None) -> Row:
    """What graphs a backend has, the bytes they took of their room, and the steps they launched since `before`.

    Empty for a backend that has none, of a group as well, whose graphs lie in other processes.
    """
    own = getattr(backend, "graphs", None)
    if own is None:
        return {"graphs": 0, "replays": 0}
    captured = list(own.captured.values())
    return {
        "graphs": len(captured),
        "graph_bytes": sum(one.graph.bytes for one in captured),
        "graph_room": own.room,
        "graph_s": sum(one.seconds for one in captured),
        "replays": sum(one.replays for one in captured) - (before or {"replays": 0})["replays"],
    }


def sizes(found: LoadedEngine) -> dict[str, Any]:
    """What was settled, for the result file."""
    engine, memory = found.engine, found.memory
    return {
        "backend": engine.backend.name,
        "kv_blocks": engine.backend.num_blocks,
        "block_size": engine.backend.block_size,
        "max_running": engine.limits.max_running,
        "max_batched_tokens": engine.limits.max_batched_tokens,
        "weights_gib": None if memory is None else round(memory.weights / 2**30, 2),
    }


def gpu_memory() -> float | None:
    """GiB free on the card."""
    return round(torch.cuda.mem_get_info()[0] / 2**30, 1) if torch.cuda.is_available() else None


def lengths(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Of prompts."""
    return [len(prompt) for prompt in prompts]
