"""Figures of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import inf, isfinite, nan

import numpy as np

from octavo_simulator.cluster import Member, Run
from octavo_simulator.job import SimulatedRequest
from octavo_simulator.scenario import Promise


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """Figures over all requests that arrived in a window. Times are seconds.

    `attainment`: share of the requests that met both TTFT and TPOT objectives; rejected, timed out and broken ones did
    not. `gpu_hours`: from each pod's creation to its exit, within the window. Of the finished requests:
    `preemption_tax`, recomputed tokens per computed token, and `hit_ratio`, the share of prompt tokens found in a
    prefix cache. `starts`: pods created. `changes_per_hour`: of the desired replicas. `longest_hold`: in a gateway,
    for any request.
    """

    requests: int
    attainment: float
    finished: int
    rejected: int
    timeout: int
    broken: int
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    gpu_hours: float
    mean_pods: float
    good_per_gpu_hour: float
    preemption_tax: float
    hit_ratio: float
    starts: int
    changes_per_hour: float
    longest_hold: float

    def row(self) -> dict[str, float]:
        """The figures for JSON, without those that are not finite."""
        return {name: value for name, value in asdict(self).items() if isfinite(value)}


def figures(run: Run, start: float = 0.0, end: float = inf) -> WindowFigures:
    """The figures of the window [start, end) of a run; pods count until the end of the trace."""
    end = min(end, run.scenario.trace.seconds)
    jobs = [job for job in run.jobs if start <= job.arrived < end]
    pods = sum(overlap(member, start, end) for member in run.members)
    hours = pods * run.scenario.profile.gpus / 3600
    good = int(attained(jobs, run.scenario.promise).sum())
    desired = [(decision.at, decision.desired) for decision in run.decisions]
    changes = sum(a[1] != b[1] for a, b in pairwise(desired) if start <= b[0] < end)
    outcomes = [job.outcome for job in jobs]
    finished = [job for job in jobs if job.outcome == "finished"]
    prompts, hits = sum(job.request.prompt for job in finished), sum(job.hit for job in finished)
    ttft = np.array([job.first - job.arrived for job in finished])
    tpot = np.array([_tpot(job) for job in finished if job.request.output > 1])
    again = sum(job.recomputed for job in finished)
    computed = prompts - hits + sum(job.made for job in finished) + again
    return WindowFigures(
        requests=len(jobs),
        attainment=good / len(jobs) if jobs else nan,
        finished=len(finished),
        rejected=outcomes.count("rejected"),
        timeout=outcomes.count("timeout"),
        broken=outcomes.count("broken"),
        ttft_p50=_percentile(ttft, 50),
        ttft_p99=_percentile(ttft, 99),
        tpot_p50=_percentile(tpot, 50),
        tpot_p99=_percentile(tpot, 99),
        gpu_hours=hours,
        mean_pods=pods / (end - start) if end > start else nan,
        good_per_gpu_hour=good / hours if hours else nan,
        preemption_tax=again / computed if computed else 0.0,
        hit_ratio=hits / prompts if prompts else 0.0,
        starts=sum(start <= member.created < end for member in run.members),
        changes_per_hour=3600 * changes / (end - start) if end > start else nan,
        longest_hold=max((job.held for job in jobs), default=0.0),
    )


def attained(jobs: Sequence[SimulatedRequest], promise: Promise) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """For each request, whether it met the TTFT and TPOT objectives."""
    return np.array([_good(job, promise) for job in jobs], dtype=bool)


def overlap(member: Member, start: float, end: float) -> float:
    """Seconds of a pod's lifetime within [start, end)."""
    return max(0.0, min(member.ended, end) - max(member.created, start))


def seconds_by_window(members: Iterable[Member], edges: Sequence[float]) -> list[float]:
    """Pod-seconds in each window between two edges."""
    members = tuple(members)
    return [sum(overlap(m, a, b) for m in members) for a, b in pairwise(edges)]


def _good(job: SimulatedRequest, promise: Promise) -> bool:
    return job.outcome == "finished" and job.first - job.arrived <= promise.ttft and _tpot(job) <= promise.tpot


def _tpot(job: SimulatedRequest) -> float:
    return (job.ended - job.first) / (job.request.output - 1) if job.request.output > 1 else 0.0


def _percentile(values: np.ndarray[tuple[int], np.dtype[np.float64]], percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else nan
