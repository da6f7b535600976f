"""Octavo's engine in this process on random weights, and its loads."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.gpu.experiments.setting import Setting
from bench.gpu.measured_models import Stored, config_of, random_model, random_weights
from bench.lib.checkpoint import write
from bench.lib.results import Row
from octavo_inference.config.engine import EngineSettings
from octavo_inference.core.engine import Engine
from octavo_inference.engine.factory import LoadedEngine, engine_for, load_engine
from octavo_inference.tools.bench.loads import Answers, answer


@dataclass(frozen=True, slots=True)
class Load:
    """Prompts that arrive at once, and the number of output tokens of each."""

    prompts: list[list[int]]
    outputs: list[int]

    def cut(self, requests: int, out: int) -> Load:
        """The first requests, each with this many output tokens."""
        return Load(self.prompts[:requests], [out] * min(requests, len(self.prompts)))


def nano_vllm(count: int = 256, least: int = 100, most: int = 1024, vocab: int = 10_001) -> Load:
    """The load of nano-vllm's bench.py, drawn in its order from its seed: 142,827 tokens in, 133,966 out."""
    rng = random.Random(0)
    prompts = [[rng.randint(0, vocab - 1) for _ in range(rng.randint(least, most))] for _ in range(count)]
    return Load(prompts, [rng.randint(least, most) for _ in range(count)])


def the_load(setting: Setting) -> Load:
    """nano-vllm's load, or a tiny one for the interpreter."""
    return nano_vllm(count=2, least=2, most=3, vocab=100) if setting.interpret else nano_vllm()


def loaded(setting: Setting, name: str, stored: Stored = "bf16", **settings: Any) -> LoadedEngine:
    """A warm engine on this machine's GPU for a model by name; `settings` as of `EngineSettings`."""
    settings = {"max_running_requests": 256, "max_batched_tokens": 8192, "max_model_len": 4096} | settings
    if setting.interpret:
        settings |= {"max_running_requests": 4, "max_batched_tokens": 16, "max_model_len": 64, "kv_memory": 1 << 18}
    given = EngineSettings(model=name, backend="cuda", profile="throughput", **settings)
    if setting.ranks == 1:
        config = config_of(name, interpret=setting.interpret)
        found = engine_for(given, random_model(name, config, stored))
    else:
        # Ranks are processes: each reads its shard of a checkpoint.
        folder = checkpoint(setting, name)
        found = load_engine(replace(given, model=str(folder), tensor_parallel_size=setting.ranks))
    answered(found.engine, Load([[1, 2, 3]], [2]), 0.0)
    # A server captures the graphs that are missing in idle moments.
    while found.engine.backend.idle():
        pass
    return found


def checkpoint(setting: Setting, name: str) -> Path:
    """Write a checkpoint folder of a model's random weights; its path."""
    config = config_of(name, interpret=setting.interpret)
    folder = setting.folder / f"octavo-{name}{'-tiny' * setting.interpret}"
    return write(folder, config, random_weights(config))


def answered(engine: Engine, load: Load, temperature: float) -> Answers:
    """Run a load, starting with an empty prefix cache; its answers."""
    engine.reset_cache()
    return answer(engine, load.prompts, load.outputs, temperature=temperature)


def graphs(backend: Any, before: Row | None = None) -> Row:
    """Number of a backend's graphs, their bytes and the reserved bytes, and the replays since `before`.

    0 for a backend without graphs, and for ranks, whose graphs are in other processes.
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
