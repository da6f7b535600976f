"""Plots: Pareto fronts of cost and attainment, and one run over time. SVG without dates, for small diffs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("svg")
mpl.rcParams |= {
    "svg.hashsalt": "octavo",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

import matplotlib.pyplot as plt  # noqa: E402 (the backend must be set first)

from octavo_simulator.cluster import Run  # noqa: E402
from octavo_simulator.fronts import Point, front  # noqa: E402

OURS, GREY = "#b5482f", "#9aa5b1"
_OTHERS = ("#2f6fb0", "#3c8d5a", "#8a5fb0", "#c08a1e", "#4aa3a8", "#7a6a58", "#c05a8a")
BIN_SECONDS = 60.0


def fronts(families: Mapping[str, Sequence[Point]], best: float | None, path: Path) -> None:
    """Plot attainment over GPU-hours, one line per scaler; `best`: an attainment level to mark."""
    figure, axes = plt.subplots(figsize=(7, 4))
    colours = iter(_OTHERS * 2)
    for title, points in families.items():
        line = front(points)
        if not line:
            continue
        ours, aside = title == "Octavo", title in {"fixed number", "oracle"}
        colour = OURS if ours else GREY if aside else next(colours)
        axes.plot(
            [p.hours for p in line],
            [100 * p.attainment for p in line],
            marker="o",
            markersize=5 if ours else 3,
            linewidth=2.2 if ours else 1.2,
            linestyle=":" if title == "oracle" else "--" if aside else "-",
            color=colour,
            label=title,
            zorder=3 if ours else 2,
        )
    if best is not None:
        axes.axhline(100 * best, color=GREY, linewidth=0.8)
    axes.set_ylim(80, 100.5)
    axes.set_xlabel("GPU-hours")
    axes.set_ylabel("requests served as promised, %")
    axes.legend(fontsize=7, loc="lower right", frameon=False)
    _save(figure, path)


def timeline(run: Run, path: Path) -> None:
    """Plot load, replicas and TTFT of one run, by the minute."""
    figure, (load, pods, ttft) = plt.subplots(3, 1, figsize=(7, 5.5), sharex=True)
    seconds = run.scenario.trace.seconds
    edges = np.arange(0, seconds + BIN_SECONDS, BIN_SECONDS)
    minutes = edges[:-1] / 60
    arrived = np.array([job.arrived for job in run.jobs])
    counts, _ = np.histogram(arrived, edges)
    load.step(minutes, counts / BIN_SECONDS, where="post", color=GREY)
    load.set_ylabel("requests/s")
    load.set_ylim(bottom=0)
    decisions = [decision for decision in run.decisions if decision.at <= seconds]
    at = [decision.at / 60 for decision in decisions]
    pods.step(at, [one.desired for one in decisions], where="post", color=OURS, label="desired", linewidth=1)
    pods.step(at, [one.ready for one in decisions], where="post", color=_OTHERS[0], label="ready")
    pods.set_ylabel("replicas")
    pods.set_ylim(bottom=0)
    pods.legend(fontsize=7, frameon=False)
    waits = np.array([job.first - job.arrived if job.first < inf else np.nan for job in run.jobs])
    bins = np.digitize(arrived, edges) - 1
    for share, colour in ((50, GREY), (99, OURS)):
        values = [_percentile(waits[bins == i], share) for i in range(len(minutes))]
        ttft.plot(minutes, values, color=colour, label=f"p{share}")
    ttft.axhline(run.scenario.promise.ttft, color="black", linewidth=0.8, label="promised")
    ttft.set_yscale("log")
    ttft.set_ylabel("first token, s")
    ttft.set_xlabel("minutes")
    ttft.legend(fontsize=7, frameon=False, ncols=3)
    _save(figure, path)


def _percentile(values: np.ndarray[tuple[int], np.dtype[np.float64]], share: float) -> float:
    known = values[~np.isnan(values)]
    return float(np.percentile(known, share)) if len(known) else float("nan")


def _save(figure: plt.Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
