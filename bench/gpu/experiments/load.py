"""nano-vllm's load through the engine: tokens per second, and the roofline's ceiling."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from bench.gpu.experiments.setting import Setting
from bench.gpu.measured_models import MODELS, config_of
from bench.gpu.profiler import device_spans, summary, watched
from bench.gpu.roofline import PUBLISHED, Rates, load_ceiling
from bench.gpu.serving import answered, graphs, loaded, the_load
from bench.lib.results import Item, Row

ROUNDS = 2


def items(setting: Setting) -> Iterator[Item]:
    """Sampled as in nano-vllm's bench, and greedy; the first round of each warms the allocator's caches."""
    for model in setting.models:
        for number in range(setting.pick(ROUNDS, 1)):
            for way, temperature in (("sampled", 0.6), ("greedy", 0.0)):
                key = f"{model} {way} {number + 1}"
                yield Item(key, partial(run, setting, model, way, temperature))


def run(setting: Setting, model: str, way: str, temperature: float) -> Row:
    """Run one round."""
    load, found = the_load(setting), setting.keep.get(model, lambda: loaded(setting, model))
    engine, memory = found.engine, found.memory
    before, preempted = graphs(engine.backend), engine.scheduler.preemptions
    with watched(engine, setting.timer) as times:
        seconds = answered(engine, load, temperature).seconds
    lengths, rate = list(map(len, load.prompts)), sum(load.outputs) / seconds
    cards = Rates(setting.peaks.bandwidth * setting.ranks, setting.peaks.bf16 * setting.ranks)
    ceiling = load_ceiling(config_of(model, interpret=setting.interpret), lengths, load.outputs, cards)
    row: Row = {"tokens_per_s": rate, "wall_s": seconds, "in": sum(lengths), "out": sum(load.outputs)}
    row |= summary(times, *device_spans(setting.timer, times), setting.pick(32, 2)) | graphs(engine.backend, before)
    row |= {"preemptions": engine.scheduler.preemptions - preempted, "ceiling": ceiling, "of_ceiling": rate / ceiling}
    row |= {"ceiling_h200_published": load_ceiling(MODELS[model], lengths, load.outputs, PUBLISHED)}
    gpu = torch.cuda.is_available()
    return row | {
        "free_gib": round(torch.cuda.mem_get_info()[0] / 2**30, 1) if gpu else None,
        "backend": engine.backend.name,
        "kv_blocks": engine.backend.num_blocks,
        "block_size": engine.backend.block_size,
        "max_running": engine.limits.max_running,
        "max_batched_tokens": engine.limits.max_batched_tokens,
        "weights_gib": None if memory is None else round(memory.weights / 2**30, 2),
        "model": model,
        "way": way,
    }
