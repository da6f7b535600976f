"""Counters and histograms of the API process, without a server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo_inference.server.metrics import Histogram, SequenceTimer, ServerMetrics
from octavo_protocol.load import EngineStats, StepSums


def stats(prefill: int, rows: int, count: int = 1) -> EngineStats:
    return EngineStats(
        block_size=16, blocks_total=1, blocks_pinned=0, blocks_cached=0, running=0, waiting=0, waiting_tokens=0,
        uncached_prompt_tokens=0, oldest_wait=0.0, preemptions=0, requests=0, prompt_tokens=0, generation_tokens=0,
        prefix_hit_tokens=0, max_running=1, max_batched_tokens=1, max_waiting=1,
        steps=StepSums(count=count, prefill=prefill, rows=rows),
    )  # fmt: skip


def sums(histogram: Histogram) -> tuple[float, float]:
    buckets, total = histogram.cumulative()
    return buckets[-1][1], total


def test_the_phases_of_a_sequence() -> None:
    metrics = ServerMetrics()
    timer = SequenceTimer(metrics, 10.0)
    timer.tokens(1, 13.0, queued=1.0)
    timer.tokens(1, 14.0)
    timer.tokens(2, 16.0)
    timer.finish("stop", 16.5)
    assert sums(metrics.queue) == (1, 1.0)
    assert sums(metrics.prefill) == (1, 2.0)
    assert sums(metrics.decode) == (1, 3.0)
    assert sums(metrics.inference) == (1, 5.0)
    assert sums(metrics.token_mean) == (1, 1.0)
    assert sums(metrics.request_generation_tokens) == (1, 4)


def test_a_sequence_without_a_token_has_no_phases() -> None:
    metrics = ServerMetrics()
    SequenceTimer(metrics, 10.0).finish("abort", 11.0)
    assert sums(metrics.queue) == sums(metrics.decode) == (0, 0.0)
    assert sums(metrics.request_generation_tokens) == (1, 0)


def test_a_step_counts_the_tokens_it_computed() -> None:
    metrics = ServerMetrics()
    for prefill, rows in ((0, 0), (30, 0), (30, 4), (30, 4), (40, 6)):
        metrics.step(stats(prefill, rows))
    assert sums(metrics.step_tokens) == (3, 46)


def test_several_steps_of_a_launch_are_counted_one_by_one() -> None:
    metrics = ServerMetrics()
    metrics.step(stats(20, 0, count=1))
    metrics.step(stats(20, 24, count=9))
    assert metrics.step_tokens.cumulative()[0][:2] == [("1.0", 0), ("8.0", 8)]
    assert sums(metrics.step_tokens) == (9, 44)


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(1, 3)), min_size=1, max_size=9), st.floats(0, 5))
def test_queue_prefill_and_decode_add_up(steps: list[tuple[float, int]], queued: float) -> None:
    metrics = ServerMetrics()
    timer, now = SequenceTimer(metrics, 0.0), queued
    for number, (seconds, count) in enumerate(steps):
        now += seconds
        timer.tokens(count, now, queued if number == 0 else 0.0)
    timer.finish("length", now)
    parts = sum(sums(each)[1] for each in (metrics.queue, metrics.prefill, metrics.decode))
    assert abs(parts - now) < 1e-9 * max(1.0, now)
    assert sums(metrics.request_generation_tokens) == (1, sum(count for _, count in steps))
