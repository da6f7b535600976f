"""Plots of result files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from plot import BLUE, GREY, RED, save

Report = dict[str, Any]
COLORS = (BLUE, RED, GREY, "#4c956c", "#8661a6", "#c9a227")
LANES = {"turn": GREY, "launch": RED, "wait": "#d8dee4", "device": BLUE}


def draw(reports: Sequence[Report], folder: Path) -> list[Path]:
    """All plots that the reports have figures for."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for report in reports:
        if "part" in report:
            parts.setdefault(report["part"], []).extend(row for row in report["rows"] if row["verdict"] == "ok")
    found = []
    if parts.get("ttft"):
        found.append(ttft(parts["ttft"], folder / "ttft.svg"))
    if parts.get("decode"):
        found.append(decode(parts["decode"], folder / "decode.svg"))
    if parts.get("load"):
        found.append(load(parts["load"], folder / "load.svg"))
    for row in parts.get("timeline", []):
        name = f"timeline-{row['model']}-{row['batch']}.svg"
        found.append(timeline(row, folder / name))
    return found


def load(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """Rates beside the ceiling."""
    _figure, axes = plt.subplots(figsize=(7, 0.4 * len(rows) + 1))
    for at, row in enumerate(rows[::-1]):
        axes.barh(at, row["of_ceiling"], height=0.6, color=BLUE)
        axes.text(row["of_ceiling"], at, f" {row['tokens_per_s']:,.0f} tok/s", va="center")
    axes.set_yticks(range(len(rows)), [row["key"] for row in rows[::-1]])
    axes.set_xlabel("share of what this card's memory and arithmetic allow")
    axes.set_xlim(0, 1.15)
    save(path)
    return path


def ttft(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """Time and share of arithmetic over the prompt's length."""
    _figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    for color, (model, own) in zip(COLORS, _by(rows, "model").items(), strict=False):
        lengths = [row["tokens"] for row in own]
        left.plot(lengths, [row["ttft_ms"] for row in own], marker="o", markersize=3, color=color, label=model)
        right.plot(lengths, [row["of_flops"] for row in own], marker="o", markersize=3, color=color)
    left.set_yscale("log")
    left.set_ylabel("ms to the first token")
    left.legend(frameon=False)
    right.set_ylabel("share of measured bf16 FLOP/s")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("prompt tokens")
    save(path)
    return path


def decode(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """Share of bandwidth over the batch, a line for each model, weights, KV and context."""
    _figure, axes = plt.subplots(figsize=(8, 4))
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        name = f"{row['model']} {row['weights']}, KV {row['kv']}, {row['context']}"
        groups.setdefault(name, []).append(row)
    for at, (name, own) in enumerate(groups.items()):
        batches, shares = [row["batch"] for row in own], [row["of_bandwidth"] for row in own]
        style = ("-", "--", ":")[at // len(COLORS) % 3]
        axes.plot(batches, shares, style, marker="o", markersize=3, color=COLORS[at % len(COLORS)], label=name)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("sequences")
    axes.set_ylabel("share of a copy's bandwidth")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=6, ncols=2)
    save(path)
    return path


def timeline(row: dict[str, Any], path: Path) -> Path:
    """Host and device over time: what the host does, when it waits for tokens, and the device's kernels."""
    _figure, axes = plt.subplots(figsize=(10, 2.4))
    kernels = [(begin, end) for begin, end, _ in row["kernels"]]
    # Events know no time of the host: without the profiler's kernels the device's line begins with the first launch.
    zero = row["launch"][0][0] if row["launch"] else 0.0
    device = kernels or [(begin + zero, end + zero) for begin, end in row["device"]]
    lanes = {"turn": row["turn"], "launch": row["launch"], "wait": row["wait"], "device": device}
    for at, (name, spans) in enumerate(lanes.items()):
        axes.broken_barh([(begin, end - begin) for begin, end in spans], (3 - at - 0.35, 0.7), color=LANES[name])
    axes.set_yticks(range(3, -1, -1), ["host: a turn of the loop", "launching", "waiting for tokens", "device"])
    axes.set_xlabel(f"ms; {row['model']}, {row['batch']} sequences; {'kernels' if kernels else 'steps, by events'}")
    save(path)
    return path


def _by(rows: Sequence[dict[str, Any]], name: str) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[name], []).append(row)
    return groups
