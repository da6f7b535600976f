"""The gain of each technique: one load with and without it, alternating; products and norms fused and separate."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from bench.gpu.cases.case import Place
from bench.gpu.experiments.kernels import linear_of, products
from bench.gpu.experiments.setting import Setting
from bench.gpu.measured_models import MODELS
from bench.gpu.profiler import spread
from bench.gpu.serving import answered, graphs, loaded, the_load
from bench.gpu.timing import Flush, measured
from bench.lib.results import Item, Row
from octavo_inference.backends.cuda.kernels.norm import add_rms_norm, rms_norm
from octavo_inference.models.config import ModelConfig
from octavo_inference.tools.bench.loads import Answers

ROUNDS = 3
REPEATS = 50
REQUESTS, OUT = 64, 128
KV_MEMORY = 8 << 30
WAYS: dict[str, dict[str, Any]] = {"graphs": {"cuda_graphs": False}, "overlap": {"overlap": False}}
"""Settings without one technique each. All techniques are on by default."""


def items(setting: Setting) -> Iterator[Item]:
    """Engines first: two of them are on the GPU at a time, one with all techniques and one without one of them."""
    for model in setting.models:
        for name, settings in WAYS.items():
            yield Item(f"{model} {name}", partial(engines, setting, model, settings))
    for model in setting.models:
        for rows in setting.pick((1, 32, 256), (2,)):
            for name, make in FUSIONS.items():
                yield Item(f"{model} {name} {rows} rows", partial(fusion, setting, make, model, rows))


def engines(setting: Setting, model: str, without: dict[str, Any]) -> Row:
    """Seconds with all techniques and without one, alternating; ratios of the rounds.

    Both sample greedily: `same_tokens` is the share of the first round's tokens before two answers diverge. In bfloat16
    they may diverge where two logits are almost equal: the tile depends on the size of the graph.
    """
    load = the_load(setting)
    load = load if setting.interpret else load.cut(REQUESTS, OUT)
    whole = setting.keep.get(model, lambda: loaded(setting, model, kv_memory=KV_MEMORY)).engine
    other = loaded(setting, model, kv_memory=KV_MEMORY, **without).engine
    rounds: list[tuple[Answers, Answers]] = []
    for number in range(setting.pick(ROUNDS, 1)):
        # The order alternates, too.
        if number % 2 == 0:
            rounds.append((answered(whole, load, 0.0), answered(other, load, 0.0)))
        else:
            rounds.append((answered(other, load, 0.0), answered(whole, load, 0.0))[::-1])
    pairs = [(a.seconds, b.seconds) for a, b in rounds]
    row: Row = {"with_s": [a for a, _ in pairs], "without_s": [b for _, b in pairs], "requests": len(load.prompts)}
    row |= {f"gain_{name}": value for name, value in spread([b / a for a, b in pairs]).items()}
    same = sum(common(a, b) for a, b in zip(rounds[0][0].tokens, rounds[0][1].tokens, strict=True))
    row |= {"same_tokens": same / sum(load.outputs)}
    return row | graphs(whole.backend) | {"replays_without": graphs(other.backend)["replays"], "model": model}


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix of two answers."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def fusion(setting: Setting, make: Make, model: str, rows: int) -> Row:
    """Microseconds fused and separate, launched alternately with an empty L2 cache."""
    fused, apart = make(setting.place, MODELS[model], rows)
    flush = Flush(setting.device)
    rounds = []
    for _ in range(setting.pick(ROUNDS, 1)):
        medians = [
            statistics.median(measured(setting.timer, launch, setting.pick(REPEATS, 1), flush))
            for launch in (fused, apart)
        ]
        rounds.append(medians)
    found = {f"gain_{name}": value for name, value in spread([b / a for a, b in rounds]).items()}
    row: Row = {"fused_us": [a * 1e6 for a, _ in rounds], "apart_us": [b * 1e6 for _, b in rounds]}
    return row | found | {"model": model, "rows": rows}


Launches = tuple[Callable[[], object], Callable[[], object]]
Make = Callable[[Place, ModelConfig, int], Launches]


def _parts_of(name: str, sizes: Callable[[ModelConfig], list[int]]) -> Make:
    def make(place: Place, config: ModelConfig, rows: int) -> Launches:
        columns = place.pick(products(config)[name][1], 64)
        heights = [place.pick(size, 32) for size in sizes(config)]
        whole = linear_of(place, "dense", sum(heights), columns)
        pieces = [linear_of(place, "dense", size, columns) for size in heights]
        x, out = place.randn(rows, columns), place.empty(rows, sum(heights))
        outs = torch.split(out, heights, dim=1)

        def apart() -> None:
            for piece, target in zip(pieces, outs, strict=True):
                piece(x, target)

        return (lambda: whole(x, out)), apart

    return make


def _norms(place: Place, config: ModelConfig, rows: int) -> Launches:
    hidden = place.pick(config.hidden, 48)
    residual, weight = place.randn(rows, hidden, dtype=torch.float32), place.weight(hidden)
    x, out = place.randn(rows, hidden) * 1e-3, place.empty(rows, hidden)

    def apart() -> None:
        residual.add_(x)
        rms_norm(residual, weight, 1e-6, out)

    return (lambda: add_rms_norm(residual, x, 1.0, weight, 1e-6, out, None)), apart


FUSIONS: dict[str, Make] = {
    "q, k and v": _parts_of(
        "qkv",
        lambda c: [c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim],
    ),
    "gate and up": _parts_of("gate_up", lambda c: [c.intermediate, c.intermediate]),
    "add and norm": _norms,
}
