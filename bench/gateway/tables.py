"""The result as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams |= {"svg.hashsalt": "octavo", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}

import matplotlib.pyplot as plt  # noqa: E402 (the backend is chosen first)

Record = dict[str, Any]
COLOURS = {"direct": "#c9d1d9", "octavo": "#2f6fb0", "vllm-router": "#b5482f", "nginx": "#9aa5b1"}


def of(records: Sequence[Record], experiment: str, way: str, name: str) -> list[float]:
    """A figure of every round of one way."""
    return [r[name] for r in records if (r["experiment"], r["way"]) == (experiment, way)]


def ways(records: Sequence[Record], experiment: str) -> list[str]:
    """Who took part, in order."""
    return list(dict.fromkeys(r["way"] for r in records if r["experiment"] == experiment))


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and the lowest and highest of the rounds."""
    if not values:
        return "–"
    text = f"**{median(values):.{digits}f}**"
    return text if len(values) == 1 else f"{text} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def added(records: Sequence[Record], experiment: str, way: str, name: str) -> list[float]:
    """What a way adds to the direct one, round by round."""
    pairs = zip(of(records, experiment, way, name), of(records, experiment, "direct", name), strict=True)
    return [through - straight for through, straight in pairs]


def table(report: Record) -> str:
    """Markdown: every experiment that was run."""
    records, sizes, talk = report["records"], report["sizes"], report["talk"]
    versions = ", ".join(f"{name} {found}" for name, found in report["versions"].items())
    load = report["load_average"][0]
    machine = f"{report['host']['processor']}, {report['host']['cores']} cores, load average {load:.1f} before"
    parts = [f"{machine}; {report['date']}; {versions}.\nMedians of the rounds, lowest and highest in brackets.\n"]
    if report["quick"]:
        parts.append("**A quick look with tiny sizes: no result.**\n")
    for kind, rate in (("plain", sizes["plain_rate"]), ("stream", sizes["stream_rate"])):
        if ways(records, kind):
            parts.append(_latency(records, kind, rate, sizes))
    if ways(records, "flat-out"):
        parts.append(_flat_out(records, sizes))
    if ways(records, "crowd"):
        parts.append(_crowd(records, sizes))
    if ways(records, "prefix"):
        parts.append(_prefix(records, talk))
    return "\n".join(parts)


def _latency(records: Sequence[Record], kind: str, rate: float, sizes: Record) -> str:
    what = f"{sizes['events']} events {sizes['gap'] * 1000:g} ms apart" if kind == "stream" else "whole answers"
    lines = [
        f"`{kind}`: {rate:g} requests/s of {sizes['prompt_bytes'] / 1000:g} kB, {what}; a core for the proxy.\n",
        "| way | first byte p50 ms | p99 ms | added p50 ms | added p99 ms | CPU ms a request | errors |",
        "|---|---|---|---|---|---|---|",
    ]
    for way in ways(records, kind):
        cells = [spread(of(records, kind, way, f"first_{p}_ms")) for p in ("p50", "p99")]
        if way == "direct":
            cells += ["", "", ""]
        else:
            cells += [spread(added(records, kind, way, f"first_{p}_ms")) for p in ("p50", "p99")]
            cells.append(spread(of(records, kind, way, "cpu_ms"), 3))
        cells.append(f"{sum(of(records, kind, way, 'errors')):.0f}")
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _flat_out(records: Sequence[Record], sizes: Record) -> str:
    lines = [
        f"`flat-out`: {sizes['flat_out_connections']} connections that ask again at once.\n",
        "| way | requests/s | CPU ms a request | total p99 ms | errors |",
        "|---|---|---|---|---|",
    ]
    for way in ways(records, "flat-out"):
        cells = [
            spread(of(records, "flat-out", way, "per_second"), 0),
            spread(of(records, "flat-out", way, "cpu_ms"), 3),
        ]
        cells += [
            spread(of(records, "flat-out", way, "total_p99_ms")),
            f"{sum(of(records, 'flat-out', way, 'errors')):.0f}",
        ]
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _crowd(records: Sequence[Record], sizes: Record) -> str:
    lines = [
        f"`crowd`: {sizes['crowd']} streams of {sizes['crowd_events']} events {sizes['crowd_gap']:g} s apart.\n",
        "| way | most at once | complete | errors | first byte p50 ms | p99 ms |",
        "|---|---|---|---|---|---|",
    ]
    for r in (r for r in records if r["experiment"] == "crowd"):
        figures = [r["at_once"], r["answers"], r["errors"], r["first_p50_ms"], r["first_p99_ms"]]
        lines.append(f"| {r['way']} | " + " | ".join(f"{figure:.1f}".removesuffix(".0") for figure in figures) + " |")
    return "\n".join(lines) + "\n"


def _prefix(records: Sequence[Record], talk: Record) -> str:
    what = (
        f"`prefix`: {talk['conversations']} conversations of {talk['turns']} turns, {talk['systems']} system prompts; "
        f"{talk['pods']} octavo-servers (SmolLM2, a thread and {talk['kv_memory']} of KV each).\n"
    )
    lines = [
        what,
        "| way | prompt tokens found in caches | TTFT p50 ms | TTFT p99 ms | requests a pod | errors |",
        "|---|---|---|---|---|---|",
    ]
    for way in ways(records, "prefix"):
        rates = [100 * rate for rate in of(records, "prefix", way, "hit_rate")]
        shares = [r["requests"] for r in records if (r["experiment"], r["way"]) == ("prefix", way)]
        cells = [
            spread(rates, 1) + " %",
            *(spread(of(records, "prefix", way, f"first_{p}_ms"), 0) for p in ("p50", "p99")),
        ]
        cells += ["; ".join("/".join(map(str, share)) for share in shares)]
        cells.append(f"{sum(of(records, 'prefix', way, 'errors')):.0f}")
        lines.append(f"| {named(way)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def named(way: str) -> str:
    """With the way it chooses."""
    return way + {"octavo": " (PrefixAware)", "vllm-router": " (cache_aware)", "nginx": " (round robin)"}.get(way, "")


_PANELS = (
    ("plain", "first_p50_ms", "whole answer, p50 ms"),
    ("plain", "first_p99_ms", "whole answer, p99 ms"),
    ("flat-out", "per_second", "requests/s on a core"),
    ("prefix", "hit_rate", "prompt found in caches"),
    ("prefix", "first_p50_ms", "conversations, TTFT p50 ms"),
    ("prefix", "first_p99_ms", "conversations, TTFT p99 ms"),
)


def picture(records: Sequence[Record], path: Path) -> None:
    """A panel per figure: the median of the rounds as a bar, their spread as a whisker."""
    shown = [panel for panel in _PANELS if ways(records, panel[0])]
    if not shown:
        return
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    _figure, grid = plt.subplots(rows, columns, figsize=(3.1 * columns, 2.5 * rows), squeeze=False)
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    for axes, (experiment, name, title) in zip(grid.flat, shown, strict=False):
        for row, way in enumerate(ways(records, experiment)):
            values = of(records, experiment, way, name)
            axes.bar(row, median(values), color=COLOURS[way], width=0.65)
            axes.plot([row, row], [min(values), max(values)], color="black", linewidth=1)
            axes.text(row, median(values), f" {median(values):.3g}", ha="center", va="bottom")
        axes.set_xticks(range(len(ways(records, experiment))), ways(records, experiment), rotation=20)
        axes.set_title(title, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    plt.tight_layout()
    plt.savefig(path, metadata={"Date": None})
    plt.close()
