"""Counters and histograms of sequences in the API process; `prometheus` renders them.

Exact: 10 requests of 10 tokens give 10 times to first token, 90 inter-token latencies and 100 generated tokens.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Sequence

from octavo_protocol.load import EngineStats

# vLLM's buckets, so that dashboards and recorded baselines fit; seconds.
# fmt: off
FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
INTER_TOKEN_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
)
# fmt: on
TOKEN_BUCKETS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
STEP_TOKEN_BUCKETS = (1.0, *(float(2**power) for power in range(3, 15)))
CHOICE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


class Histogram:
    """Counts per bucket and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add `value` `times` times."""
        self._counts[bisect.bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """In Prometheus' form: (upper bound, cumulative count), and the sum."""
        bounds = [*map(str, self._bounds), "+Inf"]
        return list(zip(bounds, itertools.accumulate(map(float, self._counts)), strict=True)), self._sum


class ServerMetrics:
    """Counters and histograms of a serving process."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.tool_parse_failures = 0
        self.first_token = Histogram(FIRST_TOKEN_BUCKETS)
        self.inter_token = Histogram(INTER_TOKEN_BUCKETS)
        self.request = Histogram(REQUEST_BUCKETS)
        self.queue = Histogram(REQUEST_BUCKETS)
        self.prefill = Histogram(REQUEST_BUCKETS)
        self.decode = Histogram(REQUEST_BUCKETS)
        self.inference = Histogram(REQUEST_BUCKETS)
        self.token_mean = Histogram(INTER_TOKEN_BUCKETS)
        self.request_prompt_tokens = Histogram(TOKEN_BUCKETS)
        self.request_generation_tokens = Histogram(TOKEN_BUCKETS)
        self.request_max_tokens = Histogram(TOKEN_BUCKETS)
        self.request_choices = Histogram(CHOICE_BUCKETS)
        self.step_tokens = Histogram(STEP_TOKEN_BUCKETS)
        self._steps = self._tokens_of_steps = 0
        self.finished: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0, "error": 0})
        self.rejected: Counter[str] = Counter(
            {"draining": 0, "not_ready": 0, "sleeping": 0, "queue_full": 0, "intake_full": 0}
        )

    def step(self, stats: EngineStats) -> None:
        """Record the steps since the last call, from the engine's state: one, or several alike in one launch."""
        computed, steps = stats.steps.prefill + stats.steps.rows, stats.steps.count
        if computed > self._tokens_of_steps:
            count = max(1, steps - self._steps)
            self.step_tokens.observe((computed - self._tokens_of_steps) / count, count)
        self._steps, self._tokens_of_steps = steps, computed

    def admitted(self, prompt_tokens: int, max_tokens: int | None, choices: int) -> None:
        """Record an admitted prompt and its parameters. `max_tokens` None: up to the model's limit."""
        self.prompt_tokens += prompt_tokens
        self.request_prompt_tokens.observe(prompt_tokens)
        self.request_choices.observe(choices)
        if max_tokens is not None:
            self.request_max_tokens.observe(max_tokens)


class SequenceTimer:
    """Records the times of one sequence in the metrics. `now` is in seconds of one monotonic clock."""

    def __init__(self, metrics: ServerMetrics, arrival: float) -> None:
        self._metrics = metrics
        self._arrival = arrival
        self._queued = 0.0
        self._first = self._last = arrival
        self._tokens = 0
        self._finished = False

    def tokens(self, count: int, now: float, queued: float = 0.0) -> None:
        """Record `count` tokens of one step; with the first, `queued` seconds from the arrival to the first step."""
        if not count:
            return
        self._metrics.generation_tokens += count
        if not self._tokens:
            self._queued = queued
            self._first = self._last = now
            self._metrics.first_token.observe(now - self._arrival)
            self._tokens = 1
            count -= 1
        self._tokens += count
        if count:
            self._metrics.inter_token.observe((now - self._last) / count, count)
        self._last = now

    def finish(self, reason: str, now: float) -> None:
        """Record the end of the sequence; later calls have no effect."""
        if not self._finished:
            self._finished = True
            self._metrics.finished[reason] += 1
            self._metrics.request.observe(now - self._arrival)
            self._metrics.request_generation_tokens.observe(self._tokens)
            if self._tokens:
                self._observe_phases()

    def _observe_phases(self) -> None:
        """Record the times between arrival, start, first and last token."""
        metrics, start = self._metrics, self._arrival + self._queued
        metrics.queue.observe(self._queued)
        metrics.prefill.observe(max(0.0, self._first - start))
        metrics.decode.observe(self._last - self._first)
        metrics.inference.observe(max(0.0, self._last - start))
        if self._tokens > 1:
            metrics.token_mean.observe((self._last - self._first) / (self._tokens - 1))
