"""How many tokens of context the same KV pool holds, with and without windows that free their blocks.

An engine over a null device runs prompts of one length until no more fit. The sums of `octavo_protocol.kv_tables` are
next to what ran. Without freeing, every layer has full attention.

    python -m bench.cpu.context --out bench/results/context.json
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.cpu.host_work import BLOCK_SIZE, MODEL, NullDevice
from bench.lib.host import host
from bench.lib.results import save
from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.request import Request, SamplingParams
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layer_groups import pool_layout
from octavo_protocol.kv_tables import tokens_held

_GIB = 2**30
_BUDGET = 2048
_ANSWER = 512
LENGTHS = (2048, 8192, 32_768)


def _windows(layers: int, period: int, window: int) -> tuple[int | None, ...]:
    """Every `period`-th layer has full attention; period 0: none."""
    return tuple(None if period and (layer + 1) % period == 0 else window for layer in range(layers))


@dataclass(frozen=True, slots=True)
class Shape:
    """The attention of a published model, and a pool."""

    name: str
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...] = field(repr=False)
    pool: int

    @property
    def config(self) -> ModelConfig:
        """A model with these layers, and nothing else of note."""
        return replace(
            MODEL, layers=len(self.windows), heads=self.kv_heads, kv_heads=self.kv_heads, head_dim=self.head_dim,
            windows=self.windows, max_positions=131_072,
        )  # fmt: skip


SHAPES = (
    Shape("Gemma 3 27B", 16, 128, _windows(62, 6, 1024), 32 * _GIB),
    Shape("gpt-oss-20b", 8, 64, _windows(24, 2, 128), 4 * _GIB),
    Shape("Mistral 7B v0.1", 8, 128, _windows(32, 0, 4096), 8 * _GIB),
    Shape("Command R7B", 8, 128, _windows(32, 4, 4096), 8 * _GIB),
)


def held(config: ModelConfig, pool: int, length: int) -> tuple[int, int]:
    """Tokens of prompts of `length` that run at a time in a pool of so many bytes: as summed, and as seen."""
    layout = pool_layout(config)
    block = layout.token_bytes(config, 2) * BLOCK_SIZE // len(layout.groups)
    blocks = pool // block
    summed = tokens_held(layout.kinds, blocks, _BUDGET, BLOCK_SIZE, length)
    rows = 2 * summed // length + 2
    device = NullDevice(blocks, lambda *_: 0.0, layout=layout, steps_ahead=0)
    limits = EngineLimits(length + _ANSWER, rows, _BUDGET + rows, rows, prefix_caching=False)
    engine = Engine(device, MODEL, limits, clock=time.monotonic)
    for number in range(rows):
        sampling = SamplingParams(max_tokens=_ANSWER, ignore_eos=True)
        engine.submit(Request(id=str(number), tokens=[number % 1000] * (length - 1), sampling=sampling))
    while engine.has_work:
        engine.step()
        running = engine.scheduler.running
        if engine.scheduler.stalled and all(sequence.num_missing_tokens <= 1 for sequence in running):
            break
    return summed, sum(sequence.computed for sequence in running)


def measure(shape: Shape, length: int) -> dict[str, Any]:
    """Compare a shape's pool with one whose layers all keep their blocks."""
    before, ran_before = held(replace(shape.config, windows=()), shape.pool, length)
    after, ran_after = held(shape.config, shape.pool, length)
    layout = pool_layout(shape.config)
    return {
        "model": shape.name,
        "length": length,
        "groups": len(layout.groups),
        "depth": layout.depth,
        "before": before,
        "after": after,
        "ratio": round(after / before, 2),
        "ran_before": ran_before,
        "ran_after": ran_after,
        "ran_ratio": round(ran_after / max(1, ran_before), 2),
    }


def table(found: list[dict[str, Any]]) -> str:
    """Format as Markdown."""
    known = ["model", "sequences of", "block tables", "layers of a block"]
    columns = [*known, "summed: before", "after", "ratio", "ran: before", "after", "ratio"]
    lines = [f"| {' | '.join(columns)} |", "|---|" + "--:|" * (len(columns) - 1)]
    lines += [
        f"| {r['model']} | {r['length']:,} | {r['groups']} | {r['depth']} | {r['before']:,} | {r['after']:,} "
        f"| {r['ratio']} | {r['ran_before']:,} | {r['ran_after']:,} | {r['ran_ratio']} |"
        for r in found
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all shapes and lengths."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = []
    for shape in SHAPES:
        for length in LENGTHS:
            found.append(measure(shape, length))
            print(table(found[-1:]).splitlines()[-1], flush=True)
    if given.out:
        save(given.out, {"host": host(), "context": found})
        given.out.with_suffix(".md").write_text(table(found))


if __name__ == "__main__":
    main()
