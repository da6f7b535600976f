"""nano-vllm's load through the engine: tokens per second beside what memory and arithmetic allow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from journal import Item, Row
from roofline import PUBLISHED, Rates, load_ceiling
from serving import gpu_memory, lengths, loaded, measured_load, nano_vllm, sizes, small_load
from shapes import MODELS, config_of

from octavo_inference.engine.factory import LoadedEngine
from parts.setting import Setting

ROUNDS = 2


def items(setting: Setting) -> Iterator[Item]:
    """Sampled as nano-vllm's bench does, and greedy; the first round of each fills caches of the allocator."""
    for model in setting.models:
        for number in range(setting.pick(ROUNDS, 1)):
            for way, temperature in (("sampled", 0.6), ("greedy", 0.0)):
                key = f"{model} {way} {number + 1}"
                yield Item(key, partial(run, setting, model, way, temperature))


def engine(setting: Setting, model: str) -> LoadedEngine:
    """Kept for the next row."""
    return setting.keep.get(model, lambda: loaded(setting, model))


def run(setting: Setting, model: str, way: str, temperature: float) -> Row:
    """One round."""
    load = small_load() if setting.interpret else nano_vllm()
    found = engine(setting, model)
    row = measured_load(found.engine, load, temperature, setting.timer, rows=setting.pick(32, 2))
    config = config_of(model, interpret=setting.interpret)
    cards = Rates(setting.peaks.bandwidth * setting.ranks, setting.peaks.bf16 * setting.ranks)
    row["ceiling"] = load_ceiling(config, lengths(load.prompts), load.outputs, cards)
    row["of_ceiling"] = row["tokens_per_s"] / row["ceiling"]
    whole = load_ceiling(MODELS[model], lengths(load.prompts), load.outputs, PUBLISHED)
    row |= {"ceiling_h200_published": whole, "free_gib": gpu_memory()} | sizes(found)
    return row | {"model": model, "way": way}
