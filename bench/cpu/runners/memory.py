"""The engine's memory compared with its budget, and the unused share of held KV blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.cpu.runners.latency import drop, request
from bench.lib.loads import mix
from octavo_inference.backends.cpu.backend import CpuBackend
from octavo_inference.core.engine import Engine


def resident() -> int:
    """Anonymous resident bytes of this process: pages mapped from files can be dropped and do not count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


def waste(engine: Engine, requests: int, steps: int) -> float:
    """Share of unused slots among all slots of held blocks, over `steps` steps of a mixed load."""
    load = mix(requests)
    names = [f"request-{i}" for i in range(requests)]
    for name, prompt, answer in zip(names, load.prompts, load.output_lengths, strict=True):
        engine.submit(request(name, prompt, answer))
    empty = held = 0
    for _ in range(steps):
        engine.step()
        for sequence in engine.scheduler.running:
            held += sequence.capacity
            empty += sequence.capacity - sequence.total
    drop(engine, names)
    return empty / held


def memory(engine: Engine, before: int, requests: int, steps: int) -> dict[str, Any]:
    """Megabytes budgeted and measured, with every page of the pool touched; and the unused share under a mixed load."""
    backend = engine.backend
    assert isinstance(backend, CpuBackend)  # noqa: S101 (the only one that counts what it allocated)
    share = waste(engine, requests, steps)
    backend.copy_blocks([(0, block) for block in range(1, backend.num_blocks)])  # touches the pages of a full pool
    budget = backend.weight_bytes + backend.kv_bytes + backend.working_bytes
    found = resident() - before
    return {
        "weights_mb": round(backend.weight_bytes / 1e6, 1),
        "kv_mb": round(backend.kv_bytes / 1e6, 1),
        "working_mb": round(backend.working_bytes / 1e6, 1),
        "found_mb": round(found / 1e6, 1),
        "off_percent": round(100 * abs(found - budget) / budget, 2),
        "waste_percent": round(100 * share, 2),
    }
