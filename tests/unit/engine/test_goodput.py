"""What the engine counts of its own use: empty slots, held rows, tokens computed twice."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from octavo_inference.server.goodput import efficiency, factors, waste
from octavo_protocol.load import LoadReport, StepSums

from .conftest import EchoBackend, Runner

Make = Callable[..., Runner]
BLOCK = 32


def report(runner: Runner) -> LoadReport:
    return runner.engine.stats()


def test_less_than_four_percent_of_the_pool_is_held_and_empty(runner: Make) -> None:
    """A mix of lengths on a pool of 512 tokens per row: a sequence leaves half a block empty, 16 tokens."""
    rows, length = 16, 512
    pool = EchoBackend(rows * length // BLOCK, BLOCK)
    mix = runner(pool, max_model_len=length, max_running=rows, budget=length)
    drawn = random.Random(0)
    for i in range(2 * rows):
        prompt = [drawn.randrange(60) for _ in range(drawn.randint(20, 150))]
        mix.submit(f"r{i}", prompt, max_tokens=drawn.randint(20, 60))
    slots = pool.num_blocks * BLOCK
    while mix.engine.has_work:
        mix.step()
        state = report(mix)
        empty = sum(s.capacity - s.computed for s in mix.engine.scheduler.running)
        assert waste(state) == empty / slots
        assert all(s.capacity - s.computed < BLOCK or s.num_missing_tokens > 1 for s in mix.engine.scheduler.running)
    kept = factors(report(mix))["slots"]
    assert 0.96 < kept < 1.0


def test_rows_and_prompts_found_are_counted(runner: Make) -> None:
    single = runner(max_running=4, budget=16)
    prompt = list(range(12))
    for name in ("first", "again"):
        single.submit(name, prompt, max_tokens=5)
        single.finish()
    shares = factors(report(single))
    assert shares["rows"] == 1 / 4
    assert shares["prefix"] == 8 / 24
    assert shares["useful"] == 1.0
    assert efficiency(report(single)) == pytest.approx(1 / 4 * 8 / 24 * shares["slots"])


def test_what_a_preemption_makes_compute_again_is_not_useful(runner: Make) -> None:
    tight = runner(blocks=8, max_running=4, budget=64, caching=False)
    for i in range(3):
        tight.submit(f"r{i}", [i] * 8, max_tokens=14)
    tight.finish()
    after = report(tight)
    assert after.preemptions
    # All that was computed: each sequence once (its last token never), and what was lost.
    once = 3 * (8 + 14 - 1)
    assert after.steps.prefill + after.steps.rows == once + after.recomputed
    assert after.recomputed > 0
    assert factors(after)["useful"] == once / (once + after.recomputed)


def test_an_unused_server_wastes_nothing(runner: Make) -> None:
    assert factors(report(runner())) == {"useful": 1.0, "rows": 1.0, "prefix": 1.0, "slots": 1.0}
    assert waste(report(runner())) == 0.0


def test_a_report_of_before_these_counts_reads_as_without_waste(runner: Make) -> None:
    old = msgspec.structs.replace(report(runner()), steps=StepSums(count=5, prefill=10, rows=5), prompt_tokens=10)
    assert factors(old)["slots"] == 1.0
