"""The table as a picture: each line's figure beside its goal. matplotlib, SVG without dates so that it diffs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams |= {"svg.hashsalt": "octavo", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}

import matplotlib.pyplot as plt  # noqa: E402 (the backend is chosen first)
from report import Result  # noqa: E402

BLUE, GREY, RED = "#2f6fb0", "#9aa5b1", "#b5482f"


def goals(found: Sequence[Result], path: Path) -> None:
    """Ratios as bars, the spread of their rounds as a whisker, the goal as a tick. Other units are left out."""
    shown = [r for r in found if r.figures and r.line.unit == "×" and not r.line.at_most][::-1]
    if not shown:
        return
    _figure, axes = plt.subplots(figsize=(8, 0.45 * len(shown) + 0.9))
    for row, result in enumerate(shown):
        axes.barh(row, result.median, height=0.55, color=RED if result.met is False else BLUE)
        axes.plot([min(result.figures), max(result.figures)], [row, row], color="black", linewidth=1)
        end = max([*result.figures, result.line.must or 0] if result.met is False else result.figures)
        axes.text(end + 0.1, row, f"{result.median:.2f}×", va="center")
        if result.line.must is not None:
            axes.plot([result.line.must] * 2, [row - 0.4, row + 0.4], color="black", linewidth=2)
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set_yticks(range(len(shown)), [r.line.title for r in shown])
    axes.set_xlabel("Octavo's rate divided by the peer's; black tick: the goal")
    save(path)


def ladder(names: Sequence[str], rates: Sequence[float], path: Path) -> None:
    """One bar per step of bench/cumulative."""
    _figure, axes = plt.subplots(figsize=(7, 3.2))
    axes.bar(range(len(names)), rates, color=BLUE, width=0.65)
    for i, rate in enumerate(rates):
        axes.text(i, rate, f"{rate / rates[0]:.1f}×", ha="center", va="bottom")
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("output tokens per second")
    save(path)


def calibration(levels: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Measured and simulated figures of a pod over the rate of requests."""
    _figure, axes = plt.subplots(1, 3, figsize=(10, 3.2))
    rates = [level["rate"] for level in levels]
    for panel, (title, keys) in zip(axes, _PANELS, strict=True):
        for key, style in zip(keys, ("-", "--"), strict=False):
            for who, color in (("measured", GREY), ("simulated", BLUE)):
                values = [level[who][key] for level in levels]
                panel.plot(rates, values, style, color=color, marker="o", markersize=3, label=who)
        panel.set_title(title)
        panel.set_xlabel("requests per second")
        panel.set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    save(path)


_PANELS = (
    ("ms between tokens", ("inter_token",)),
    ("ms to the first token: p99, p50 dashed", ("ttft_p99", "ttft_p50")),
    ("share of requests within SLO", ("attained",)),
)


def save(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    plt.tight_layout()
    plt.savefig(path, metadata={"Date": None})
    plt.close()
