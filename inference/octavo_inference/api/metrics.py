"""Prometheus metrics: what the API saw of each sequence, and the engine's own counters.

Every metric has an `octavo:` name and the `vllm:` alias that autoscalers and benchmarks of the field read. Exact: 10
requests of 10 tokens give 10 times to first token, 90 inter-token latencies and 100 generated tokens.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo_protocol.load import LoadReport

PREFIXES = ("octavo:", "vllm:")
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
        """Prometheus' form: (upper bound, count up to it), and the sum."""
        bounds = [*map(str, self._bounds), "+Inf"]
        return list(zip(bounds, itertools.accumulate(map(float, self._counts)), strict=True)), self._sum


class Metrics:
    """What is counted while serving."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.first_token = Histogram(FIRST_TOKEN_BUCKETS)
        self.inter_token = Histogram(INTER_TOKEN_BUCKETS)
        self.request = Histogram(REQUEST_BUCKETS)
        self.finished: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0, "error": 0})
        self.rejected: Counter[str] = Counter()


class SequenceTimer:
    """Times one sequence into the metrics. `now` are seconds of one monotonic clock."""

    def __init__(self, metrics: Metrics, arrival: float) -> None:
        self._metrics = metrics
        self._arrival = arrival
        self._last: float | None = None
        self._finished = False

    def tokens(self, count: int, now: float) -> None:
        """`count` tokens came out of one step."""
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
        """The sequence ended; later calls change nothing."""
        if not self._finished:
            self._finished = True
            self._metrics.finished[reason] += 1
            self._metrics.request.observe(now - self._arrival)


class _Exposition(Collector):
    def __init__(
        self,
        metrics: Metrics,
        report: Callable[[], LoadReport | None],
        settings: Callable[[], Mapping[str, str]],
        model: str,
    ) -> None:
        self._metrics = metrics
        self._report = report
        self._settings = settings
        self._model = model

    def collect(self) -> Iterator[Metric]:
        for prefix in PREFIXES:
            yield from self._served(prefix)
            report = self._report()
            if report is not None:
                yield from self._engine(prefix, report)
        settings = self._settings()
        if settings:
            info = GaugeMetricFamily("octavo:engine_info", "Settings in effect, as labels", labels=list(settings))
            info.add_metric(list(settings.values()), 1)
            yield info

    def _served(self, prefix: str) -> Iterator[Metric]:
        m = self._metrics
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of admitted requests", m.prompt_tokens),
            ("generation_tokens", "Generated tokens", m.generation_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", m.prompt_tokens),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache", m.cached_tokens),
        ):
            yield self._counter(prefix + name, text, value)
        for name, text, histogram in (
            ("time_to_first_token_seconds", "From arrival to the first token of a sequence", m.first_token),
            ("inter_token_latency_seconds", "Between two tokens of a sequence", m.inter_token),
            ("e2e_request_latency_seconds", "From arrival to the last token of a sequence", m.request),
        ):
            family = HistogramMetricFamily(prefix + name, text, labels=["model_name"])
            buckets, total = histogram.cumulative()
            family.add_metric([self._model], buckets, total)
            yield family
        success = CounterMetricFamily(
            f"{prefix}request_success", "Finished sequences", labels=["model_name", "finished_reason"]
        )
        for reason, count in m.finished.items():
            success.add_metric([self._model, reason], count)
        yield success
        rejections = CounterMetricFamily(
            f"{prefix}admission_rejections", "Requests refused with 503", labels=["model_name", "reason"]
        )
        for reason, count in m.rejected.items():
            rejections.add_metric([self._model, reason], count)
        yield rejections

    def _engine(self, prefix: str, report: LoadReport) -> Iterator[Metric]:
        for name, text, value in (
            ("num_requests_running", "Sequences in the batch", report.running),
            ("num_requests_waiting", "Sequences waiting for it", report.waiting),
            ("kv_cache_usage_perc", "Share of KV blocks that live sequences hold, 0..1", report.kv_occupancy),
        ):
            gauge = GaugeMetricFamily(prefix + name, text, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
        yield self._counter(f"{prefix}num_preemptions", "Sequences preempted for want of blocks", report.preemptions)
        if prefix == "octavo:":
            for name, text, value in (
                ("batch_rows", "Rows that decoded a token, summed over steps", report.steps.rows),
                ("batch_rows_idle", "Rows held by finished sequences of a static batch", report.steps.idle_rows),
                ("num_swaps", "Preempted sequences whose KV was kept in host memory", report.swaps),
                ("pool_checks", "Times the block pool's books were found right while idle", report.checks),
            ):
                yield self._counter(prefix + name, text, value)

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family


def exposition(
    metrics: Metrics,
    report: Callable[[], LoadReport | None],
    settings: Callable[[], Mapping[str, str]],
    model: str,
) -> Callable[[], bytes]:
    """A function that renders all metrics in Prometheus' text format. `model` is the served name, for the label."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Exposition(metrics, report, settings, model))
    return lambda: generate_latest(registry)
