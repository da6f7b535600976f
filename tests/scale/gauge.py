"""What the operator says of itself in /metrics, and what the kernel says of its process. Samples in, figures out."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

_LINE = re.compile(r"^([a-zA-Z_:]+)(?:\{(.*)\})? (\S+)$")
_LE = re.compile(r'le="([^"]+)"')
WORK = "workqueue_work_duration_seconds"
WAIT = "workqueue_queue_duration_seconds"


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. `at` is Unix time; `work` and `wait` are cumulative counts by upper bound in seconds."""

    at: float
    rss: int
    cpu: float
    requests: float
    reads: float
    writes: float
    passes: float
    depth: float
    known: int
    ready: int
    work: dict[float, float]
    wait: dict[float, float]


def look(url: str, process: psutil.Process, at: float) -> Sample:
    """Scrape and measure. Raises OSError when the operator does not answer."""
    with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310 - our own process
        text = answer.read().decode()
    times, memory = process.cpu_times(), process.memory_info()
    return parse(text, at, memory.rss, times.user + times.system)


def parse(text: str, at: float, rss: int, cpu: float) -> Sample:
    """A sample from an exposition."""
    sums: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {WORK: {}, WAIT: {}}
    reads = writes = 0.0
    known = 0
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        name, labels, value = found[1], found[2] or "", float(found[3])
        sums[name] = sums.get(name, 0.0) + value
        if name.removesuffix("_bucket") in buckets and (bound := _LE.search(labels)):
            buckets[name.removesuffix("_bucket")][float(bound[1])] = value
        elif name == "rest_client_requests_total":
            reads, writes = (reads + value, writes) if 'method="GET"' in labels else (reads, writes + value)
        elif name == "octavo_ready_replicas":
            known += 1
    return Sample(
        at=at, rss=rss, cpu=cpu, requests=reads + writes, reads=reads, writes=writes,
        passes=sums.get("octavo_reconcile_total", 0.0), depth=sums.get("workqueue_depth", 0.0), known=known,
        ready=round(sums.get("octavo_ready_replicas", 0.0)), work=buckets[WORK], wait=buckets[WAIT],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figures:
    """What a phase cost. Quantiles are seconds, interpolated within the histogram's buckets; `rss` is the highest."""

    seconds: float
    passes: float
    p50: float
    p99: float
    over_second: float
    wait_p99: float
    requests: float
    reads: float
    qps: float
    cpu: float
    rss: int


def figures(samples: Iterable[Sample]) -> Figures:
    """From the first to the last sample of a phase, of one process."""
    every = list(samples)
    first, last = every[0], every[-1]
    seconds = last.at - first.at
    work, wait = _difference(first.work, last.work), _difference(first.wait, last.wait)
    total = work.get(float("inf"), 0.0)
    return Figures(
        seconds=seconds,
        passes=last.passes - first.passes,
        p50=quantile(work, 0.5),
        p99=quantile(work, 0.99),
        over_second=(total - work.get(1.0, 0.0)) / total if total else 0.0,
        wait_p99=quantile(wait, 0.99),
        requests=last.requests - first.requests,
        reads=last.reads - first.reads,
        qps=(last.requests - first.requests) / seconds if seconds else 0.0,
        cpu=last.cpu - first.cpu,
        rss=max(sample.rss for sample in every),
    )


def _difference(before: dict[float, float], after: dict[float, float]) -> dict[float, float]:
    return {bound: value - before.get(bound, 0.0) for bound, value in after.items()}


def quantile(buckets: dict[float, float], share: float) -> float:
    """As Prometheus' histogram_quantile: linear within the bucket; the last finite bound beyond it; 0 without any."""
    bounds = sorted(buckets)
    if not bounds or not buckets[bounds[-1]]:
        return 0.0
    rank = share * buckets[bounds[-1]]
    low, below = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= rank:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (rank - below) / (buckets[bound] - below)
        low, below = bound, buckets[bound]
    return low
