"""The host's cost per step, with a device that only takes time: python -m bench.cpu.host_work.

The device is null: a step ends a fixed number of milliseconds after the one before, and its tokens are made up. All
else is the work of a server's engine process: incoming messages, scheduler, pool, row table, outputs, the frame to the
API process. The load is decodes alone, of sequences of different lengths. Measured are the host's milliseconds per
step, the integers that each step sends to the device, and the device's idle share, with overlap and without.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.lib.host import host
from bench.lib.results import save
from octavo_inference.common.framing import encode_frame
from octavo_inference.core.backend import HostBlocks
from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.model_input import RowChange, RowStep, StepResult
from octavo_inference.core.request import Request, SamplingParams
from octavo_inference.engine.loop import EngineLoop
from octavo_inference.models.config import ModelConfig

BLOCK_SIZE, VOCAB = 16, 151_936
_BUDGET = 8192
MODEL = ModelConfig(
    architecture="null", layers=1, hidden=16, heads=1, kv_heads=1, head_dim=16, intermediate=16, vocab=VOCAB,
    max_positions=40_960, rope_theta=1e4, norm_eps=1e-6, tied_embeddings=True, eos_token_ids=(), digest="null",
)  # fmt: skip


@dataclass(slots=True)
class NullDevice:
    """A `Backend` that takes `seconds` for a step and records its idle time. Times are of `time.perf_counter`."""

    num_blocks: int
    seconds: float
    name: str = "null"
    block_size: int = BLOCK_SIZE
    steps_ahead: int = 1
    max_prompt_scores: int | None = None
    vocab_size: int = VOCAB
    hidden_size: int = 0
    waited: float = 0.0
    """Seconds that the host waited for the device."""
    idle_time: float = 0.0
    sent: list[int] = field(default_factory=list)
    free_at: float = 0.0
    """End of the last launched step."""

    def launch(self, step: RowStep) -> NullStep:
        """Start when the previous step ends, or now."""
        now = time.perf_counter()
        if self.free_at:
            self.idle_time += max(0.0, now - self.free_at)
        self.free_at = max(now, self.free_at) + self.seconds
        arrays = (step.row, step.query_start, step.seq_len, step.sample.query, step.sample.row, step.sample.position)
        self.sent.append(sum(len(array) for array in arrays) + sum(len(change.values) for change in step.changes))
        return NullStep(self, len(step.sample.row), self.free_at)

    def part_seconds(self) -> dict[str, float]:
        """Not measured."""
        return {}

    def idle(self) -> bool:
        """Nothing to prepare."""
        return False

    def to_host(self, blocks: Sequence[int]) -> HostBlocks:
        """Never called: nothing is swapped."""
        raise AssertionError(blocks)

    def from_host(self, saved: HostBlocks, blocks: Sequence[int]) -> None:
        """Never called."""
        raise AssertionError(saved, blocks)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """The null device stores nothing."""

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """The null device stores nothing."""


@dataclass(frozen=True, slots=True)
class NullStep:
    """A step that ends at a fixed time."""

    device: NullDevice
    rows: int
    end: float

    def choose(self, masks: Sequence[RowChange]) -> None:
        """Nothing: the tokens do not depend on masks."""

    def collect(self) -> StepResult:
        """Sleep until the step ends."""
        begin = time.perf_counter()
        time.sleep(max(0.0, self.end - begin))
        self.device.waited += time.perf_counter() - begin
        count = self.rows
        return StepResult(
            np.full(count, 7, np.int32), np.zeros(count, np.float32), np.ones(count, np.int32), [None] * count
        )


def measure(rows: int, context: int, seconds: float, steps: int, *, overlap: bool) -> dict[str, Any]:
    """Run `steps` decodes of `rows` sequences of about `context` tokens on a device that takes `seconds` per step."""
    # Sequences that arrived first decode during the others' prefill.
    answer = steps + 40 + 2 * rows * context // _BUDGET
    longest = context + answer
    device = NullDevice(rows * (-(-longest // BLOCK_SIZE) + 1), 0.0)
    limits = EngineLimits(longest, rows, _BUDGET, rows, prefix_caching=True, overlap=overlap)
    engine = Engine(device, MODEL, limits, clock=time.monotonic)
    loop = EngineLoop(engine)
    rng = np.random.default_rng(0)
    requests = [
        Request(
            id=f"chatcmpl-{i:032x}",
            tokens=rng.integers(0, VOCAB, context - i % 16).tolist(),
            sampling=SamplingParams(max_tokens=answer, ignore_eos=True, temperature=0.7, seed=i),
        )
        for i in range(rows)
    ]
    loop.run_once(requests)
    while sum(len(s.tokens) > 0 and s.num_missing_tokens == 1 for s in engine.scheduler.running) < rows:
        loop.run_once([])
    for _ in range(4):
        loop.run_once([])
    device.seconds, device.idle_time, device.waited = seconds, 0.0, 0.0
    device.sent.clear()
    device.free_at = 0.0
    took = []
    begin = time.perf_counter()
    for _ in range(steps):
        waited, start = device.waited, time.perf_counter()
        encode_frame(loop.run_once([]))
        took.append(time.perf_counter() - start - (device.waited - waited))
    whole = time.perf_counter() - begin
    return {
        "rows": rows,
        "context": context,
        "device_ms": seconds * 1e3,
        "overlap": overlap,
        "host_ms_p50": round(statistics.median(took) * 1e3, 3),
        "host_ms_p99": round(statistics.quantiles(took, n=100)[98] * 1e3, 3),
        "idle_share": round(device.idle_time / whole, 4),
        "step_ms": round(whole / steps * 1e3, 3),
        "integers_per_step": round(statistics.mean(device.sent), 1),
    }


def table(found: list[dict[str, Any]]) -> str:
    """Format all rows as Markdown."""
    lines = [
        "| rows | context | device, ms | overlap | host p50, ms | p99 | step, ms | device idle | integers sent |",
        "|--:|--:|--:|---|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {r['rows']} | {r['context']:,} | {r['device_ms']:g} | {'on' if r['overlap'] else 'off'} "
        f"| {r['host_ms_p50']:.2f} | {r['host_ms_p99']:.2f} | {r['step_ms']:.2f} | {r['idle_share']:.1%} "
        f"| {r['integers_per_step']:,.0f} |"
        for r in found
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 4096])
    parser.add_argument("--device-ms", type=float, nargs="+", default=[3.1, 10.0], help="3.1: a 0.6B step at the roof")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = []
    for rows in given.rows:
        for context in given.contexts:
            for milliseconds in given.device_ms:
                for overlap in (False, True):
                    found.append(measure(rows, context, milliseconds / 1e3, given.steps, overlap=overlap))
                    print(table(found[-1:]).splitlines()[-1], flush=True)
    if given.out:
        save(given.out, {"host": host(), "rows": found})
        given.out.with_suffix(".md").write_text(table(found))


if __name__ == "__main__":
    main()
