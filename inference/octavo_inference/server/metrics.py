"""Counters and histograms of sequences in the API process; `prometheus` renders them.

Exact: 10 requests of 10 tokens give 10 times to first token, 90 inter-token latencies and 100 generated tokens.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Sequence

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
        self.first_token = Histogram(FIRST_TOKEN_BUCKETS)
        self.inter_token = Histogram(INTER_TOKEN_BUCKETS)
        self.request = Histogram(REQUEST_BUCKETS)
        self.finished: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0, "error": 0})
        self.rejected: Counter[str] = Counter({"draining": 0, "not_ready": 0, "queue_full": 0, "intake_full": 0})


class SequenceTimer:
    """Records the times of one sequence in the metrics. `now` is in seconds of one monotonic clock."""

    def __init__(self, metrics: ServerMetrics, arrival: float) -> None:
        self._metrics = metrics
        self._arrival = arrival
        self._last: float | None = None
        self._finished = False

    def tokens(self, count: int, now: float) -> None:
        """Record `count` tokens of one step."""
        if not count:
            return
        self._metrics.generation_tokens += count
        if self._last is None:
            self._metrics.first_token.observe(now - self._arrival)
            count -= 1
            self._last = now
        if count:
            self._metrics.inter_token.observe((now - self._last) / count, count)
        self._last = now

    def finish(self, reason: str, now: float) -> None:
        """Record the end of the sequence; later calls have no effect."""
        if not self._finished:
            self._finished = True
            self._metrics.finished[reason] += 1
            self._metrics.request.observe(now - self._arrival)
