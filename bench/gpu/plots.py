"""Plots of result files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.gpu.report import rows_of
from bench.lib.plot import BLUE, GREY, RED, plt, save
from bench.lib.results import Row

COLORS = (BLUE, RED, GREY, "#4c956c", "#8661a6", "#c9a227")
LANES = {"turn": GREY, "launch": RED, "wait": "#d8dee4", "device": BLUE}


def draw(reports: Sequence[Row], folder: Path) -> list[Path]:
    """Draw all plots for which the reports have figures."""
    measured = [report for report in reports if "part" in report]
    found = []
    for part, plot in (("ttft", ttft), ("decode", decode), ("load", load)):
        if rows := [row for row in rows_of(measured, part) if row["verdict"] == "ok"]:
            found.append(plot(rows, folder / f"{part}.svg"))
    spans = [row for row in rows_of(measured, "timeline") if row["verdict"] == "ok"]
    return found + [timeline(row, folder / f"timeline-{row['model']}-{row['batch']}.svg") for row in spans]


def load(rows: Sequence[Row], path: Path) -> Path:
    """Plot throughput as a share of the ceiling."""
    _figure, axes = plt.subplots(figsize=(8, 0.35 * len(rows) + 1))
    for at, row in enumerate(rows[::-1]):
        axes.barh(at, row["of_ceiling"], color=BLUE)
        axes.text(row["of_ceiling"], at, f" {row['tokens_per_s']:,.0f} tok/s", va="center")
    axes.set_yticks(range(len(rows)), [row["key"] for row in rows[::-1]])
    axes.set(xlabel="share of what this card's memory and arithmetic allow", xlim=(0, 1.15))
    return save(path)


def ttft(rows: Sequence[Row], path: Path) -> Path:
    """Plot time and share of peak arithmetic over the prompt's length."""
    _figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    _lines(left, rows, "model", "tokens", "ttft_ms")
    _lines(right, rows, "model", "tokens", "of_flops")
    left.set(yscale="log", ylabel="ms to the first token", xlabel="prompt tokens")
    right.set(ylabel="share of measured bf16 FLOP/s", ylim=(0, None), xlabel="prompt tokens")
    left.legend(frameon=False)
    return save(path)


def decode(rows: Sequence[Row], path: Path) -> Path:
    """Plot the share of bandwidth over the batch, one line for each model, weights, KV and context."""
    _figure, axes = plt.subplots(figsize=(8, 4))
    named = [row | {"name": f"{row['model']} {row['weights']}, KV {row['kv']}, {row['context']}"} for row in rows]
    _lines(axes, named, "name", "batch", "of_bandwidth")
    axes.set(xlabel="sequences", ylabel="share of a copy's bandwidth", ylim=(0, None))
    axes.legend(frameon=False, fontsize=6, ncols=2)
    return save(path)


def timeline(row: Row, path: Path) -> Path:
    """Plot host and device over time: the host's work, its waits for tokens, and the device's kernels."""
    _figure, axes = plt.subplots(figsize=(10, 2.4))
    kernels = [(begin, end) for begin, end, _ in row["kernels"]]
    # CUDA events have no host timestamps: without the profiler's kernels the device's line starts at the first launch.
    zero = row["launch"][0][0] if row["launch"] else 0.0
    device = kernels or [(begin + zero, end + zero) for begin, end in row["device"]]
    lanes = {"turn": row["turn"], "launch": row["launch"], "wait": row["wait"], "device": device}
    for at, (name, spans) in enumerate(lanes.items()):
        axes.broken_barh([(begin, end - begin) for begin, end in spans], (3 - at - 0.35, 0.7), color=LANES[name])
    axes.set_yticks(range(3, -1, -1), ["host: a turn of the loop", "launching", "waiting for tokens", "device"])
    axes.set_xlabel(f"ms; {row['model']}, {row['batch']} sequences; {'kernels' if kernels else 'steps, by events'}")
    return save(path)


def _lines(axes: Any, rows: Sequence[Row], group: str, x: str, y: str) -> None:
    """Draw a line for each group, over a logarithmic x axis."""
    axes.set_xscale("log", base=2)
    groups = groupby(sorted(rows, key=lambda row: str(row[group])), key=lambda row: str(row[group]))
    for at, (name, found) in enumerate(groups):
        own = list(found)
        style, color = ("-", "--", ":")[at // len(COLORS) % 3], COLORS[at % len(COLORS)]
        axes.plot([r[x] for r in own], [r[y] for r in own], style, marker="o", markersize=3, color=color, label=name)
