"""The host's cost per step, with a device that only takes time: python -m bench.cpu.host_work.

The device is null: a step ends some milliseconds after the one before, and its tokens are made up. All else is the
work of a server's engine process: incoming messages, scheduler, pool, row table, outputs, the frame to the API process.
The first load is decodes alone, of sequences of different lengths, on a device whose steps all take the same time.
Measured are the host's milliseconds per step, the integers that each step sends to the device, and the device's idle
share: one step after the other, with overlap, with overlap and speculation whose guesses are never worth it, and with
several steps per launch. In the second load, prompts come next
to running answers, on the devices of `prefill_chunks`, where a step takes longer for prompt tokens: their steps, and
the host's milliseconds for each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.cpu.prefill_chunks import DEVICES
from bench.lib.host import host
from bench.lib.results import save
from octavo_inference.common.framing import encode_frame
from octavo_inference.core.backend import HostBlocks, WithoutAdapters, WithoutStates
from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.model_input import RowChange, RowStep, StepResult
from octavo_inference.core.prefill_budget import pairs
from octavo_inference.core.request import Request, SamplingParams
from octavo_inference.core.speculation.expected_times import ExpectedTimes, TokenCurve
from octavo_inference.core.speculation.proposers import NgramProposer
from octavo_inference.core.speculation.speculator import Speculator
from octavo_inference.engine.loop import EngineLoop
from octavo_inference.engine.speculation import REST
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layer_groups import PoolLayout, one_group
from octavo_simulator.steptime import PodProfile

BLOCK_SIZE, VOCAB = 16, 151_936
_BUDGET = 8192
_DEAR = TokenCurve((1, 2), (1.0, 2.0))
MODEL = ModelConfig(
    architecture="null", layers=1, hidden=16, heads=1, kv_heads=1, head_dim=16, intermediate=16, vocab=VOCAB,
    max_positions=40_960, rope_theta=1e4, norm_eps=1e-6, tied_embeddings=True, eos_token_ids=(), digest="null",
)  # fmt: skip


@dataclass(slots=True)
class NullDevice(WithoutStates, WithoutAdapters):
    """A `Backend` that only takes time, and records its idle time. Times are of `time.perf_counter`."""

    num_blocks: int
    seconds: Callable[[int, int, int], float]
    """Of a step with this many decodes, prompt tokens, and pairs of a prompt token and one before it."""
    name: str = "null"
    block_size: int = BLOCK_SIZE
    layout: PoolLayout = field(default_factory=lambda: one_group(1))
    steps_ahead: int = 1
    decode_runs: bool = False
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
        queries = np.diff(step.query_start)
        decodes = int((queries == 1).sum())
        chunks = [(int(n), int(length - n)) for n, length in zip(queries, step.seq_len, strict=True) if n > 1]
        earlier = sum(pairs(*chunk) for chunk in chunks)
        seconds = self.seconds(decodes, int(queries.sum()) - decodes, earlier)
        steps = 1 if step.run is None else max(1, min(step.run.steps, int(step.run.seconds / max(seconds, 1e-9))))
        self.free_at = max(now, self.free_at) + seconds * steps
        arrays = (step.row, step.query_start, step.seq_len, step.sample.query, step.sample.row, step.sample.position)
        self.sent.append(sum(len(array) for array in arrays) + sum(len(change.values) for change in step.changes))
        rows = len(step.sample.row)
        return NullStep(self, rows if step.run is None else (steps, rows), self.free_at)

    def part_seconds(self) -> dict[str, float]:
        """Not measured."""
        return {}

    def expert_tokens(self) -> None:
        """There are no experts."""

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
    shape: int | tuple[int, int]
    end: float

    def choose(self, masks: Sequence[RowChange]) -> None:
        """Nothing: the tokens do not depend on masks."""

    def collect(self) -> StepResult:
        """Sleep until the step ends."""
        begin = time.perf_counter()
        time.sleep(max(0.0, self.end - begin))
        self.device.waited += time.perf_counter() - begin
        tokens = np.full(self.shape, 7, np.int32)
        count = tokens.shape[-1]
        return StepResult(tokens, np.zeros(count, np.float32), np.ones(count, np.int32), [None] * count)


@dataclass(frozen=True, slots=True)
class _Process:
    """An engine process next to a null device."""

    device: NullDevice
    engine: Engine
    loop: EngineLoop

    @property
    def decoding(self) -> int:
        """Number of sequences that generate."""
        return sum(len(s.tokens) > 0 and s.num_missing_tokens == 1 for s in self.engine.scheduler.running)

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return self.engine.counters.steps().count

    def step(self, requests: Sequence[Request] = ()) -> float:
        """Run one launch with new requests; returns the host's seconds."""
        waited, start = self.device.waited, time.perf_counter()
        encode_frame(self.loop.run_once(list(requests)))
        return time.perf_counter() - start - (self.device.waited - waited)


def _request(number: int, tokens: int, answer: int) -> Request:
    return Request(
        id=f"chatcmpl-{number:032x}",
        tokens=np.random.default_rng(number).integers(0, VOCAB, tokens).tolist(),
        sampling=SamplingParams(max_tokens=answer, ignore_eos=True, temperature=0.7, seed=number),
    )


def _decoding(
    seconds: Callable[[int, int, int], float],
    limits: EngineLimits,
    rows: int,
    context: int,
    *,
    runs: bool = False,
    guesses: bool = False,
) -> _Process:
    """An engine process in which `rows` sequences of about `context` tokens generate until the longest length.

    With `guesses` they are looked for now and then, and never worth it.
    """
    device = NullDevice(limits.max_running * (-(-limits.max_model_len // BLOCK_SIZE) + 1), seconds)
    if runs:
        device.decode_runs, device.steps_ahead = True, 0
    speculator = (
        Speculator(NgramProposer(2), 8, times=ExpectedTimes(_DEAR), adjusted=False, rest=REST) if guesses else None
    )
    engine = Engine(device, MODEL, limits, clock=time.monotonic, speculator=speculator)
    process = _Process(device, engine, EngineLoop(engine))
    process.step([_request(i, context - i % 16, limits.max_model_len - context) for i in range(rows)])
    while process.decoding < rows:
        process.step()
    for _ in range(4):
        process.step()
    return process


def measure(
    rows: int, context: int, seconds: float, steps: int, *, overlap: bool, runs: bool = False, guesses: bool = False
) -> dict[str, Any]:
    """Run `steps` decodes of `rows` sequences of about `context` tokens on a device that takes `seconds` per step.

    With `runs` a launch may take several steps. Milliseconds and integers are per step. `guesses`: see `_decoding`.
    """
    # Sequences that arrived first decode during the others' prefill.
    answer = steps + 80 + 2 * rows * context // _BUDGET
    limits = EngineLimits(context + answer, rows, _BUDGET, rows, prefix_caching=True, overlap=overlap)
    limits = replace(limits, max_samples=2 * rows)
    process = _decoding(lambda *_: 0.0, limits, rows, context, runs=runs, guesses=guesses)
    device = process.device
    device.seconds = lambda *_: seconds
    device.idle_time = 0.0
    device.sent.clear()
    device.free_at = 0.0
    begin = time.perf_counter()
    took, first = [], process.steps
    host_seconds = 0.0
    while (done := process.steps - first) < steps:
        host_seconds += process.step()
        # A call may launch a step and collect none, or collect two.
        if collected := process.steps - first - done:
            took += [host_seconds / collected] * collected
            host_seconds = 0.0
    whole = time.perf_counter() - begin
    return {
        "rows": rows,
        "context": context,
        "device_ms": seconds * 1e3,
        "launches": "runs" if runs else "overlap, guesses rest" if guesses else "overlap" if overlap else "one by one",
        "host_ms_p50": round(statistics.median(took) * 1e3, 3),
        "host_ms_p99": round(statistics.quantiles(took, n=100)[98] * 1e3, 3),
        "idle_share": round(device.idle_time / whole, 4),
        "step_ms": round(whole / done * 1e3, 3),
        "integers_per_step": round(sum(device.sent) / done, 1),
    }


def table(found: list[dict[str, Any]]) -> str:
    """Format all rows as Markdown."""
    lines = [
        "| rows | context | device, ms | launches | host p50, ms | p99 | step, ms | device idle | integers sent |",
        "|--:|--:|--:|---|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {r['rows']} | {r['context']:,} | {r['device_ms']:g} | {r['launches']} "
        f"| {r['host_ms_p50']:.2f} | {r['host_ms_p99']:.2f} | {r['step_ms']:.2f} | {r['idle_share']:.1%} "
        f"| {r['integers_per_step']:,.0f} |"
        for r in found
    ]
    return "\n".join(lines) + "\n"


def measure_prompts(device: PodProfile, rows: int, tokens: int, prompts: int) -> dict[str, Any]:
    """Send prompts of `tokens` tokens, one at a time, next to `rows` generating sequences on `device`, with overlap."""
    # Even in chunks of 8 tokens, no sequence ends before the last prompt.
    longest = 200 + prompts * (tokens // 8 + 40)
    limits = EngineLimits(
        longest, rows + 1, device.budget, rows + 1, prefill_slowdown=device.slowdown or None, overlap=True
    )
    process = _decoding(device.mixed, limits, rows, 100)
    for _ in range(20):
        process.step()
    steps, seconds, took = [], [], []
    for number in range(prompts):
        begin, count = time.perf_counter(), 1
        took.append(process.step([_request(rows + number, tokens, 1)]))
        while process.engine.scheduler.uncached():
            took.append(process.step())
            count += 1
        steps.append(count)
        seconds.append(time.perf_counter() - begin)
        for _ in range(20):
            process.step()
    return {
        "device": device.name,
        "rows": rows,
        "tokens": tokens,
        "steps": [steps[0], steps[-1]],
        "ms": [round(seconds[0] * 1e3, 1), round(seconds[-1] * 1e3, 1)],
        "host_ms_p50": round(statistics.median(took) * 1e3, 3),
    }


def prompt_table(found: list[dict[str, Any]]) -> str:
    """Format the rows of `measure_prompts` as Markdown."""
    lines = [
        "| device | rows | prompt | first prompt | last prompt | host p50, ms |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for r in found:
        first, last = (f"{n} steps, {ms:,.0f} ms" for n, ms in zip(r["steps"], r["ms"], strict=True))
        lines.append(f"| {r['device']} | {r['rows']} | {r['tokens']:,} | {first} | {last} | {r['host_ms_p50']:.2f} |")
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
                for ways in ({}, {"overlap": True}, {"overlap": True, "guesses": True}, {"runs": True}):
                    found.append(measure(rows, context, milliseconds / 1e3, given.steps, **{"overlap": False} | ways))
                    print(table(found[-1:]).splitlines()[-1], flush=True)
    entering = [measure_prompts(device, 64, 2000, 20) for device in DEVICES if device.base < 0.01]
    print(prompt_table(entering), end="")
    if given.out:
        save(given.out, {"host": host(), "rows": found, "prompts": entering})
        given.out.with_suffix(".md").write_text(f"{table(found)}\n{prompt_table(entering)}")


if __name__ == "__main__":
    main()
