"""Formats the results as tables and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.lib.plot import plt, save

Record = dict[str, Any]
COLOURS = {"direct": "#c9d1d9", "octavo": "#2f6fb0", "vllm-router": "#b5482f", "nginx": "#9aa5b1"}


def of(records: Sequence[Record], experiment: str, way: str, name: str) -> list[float]:
    """A figure of one proxy from every round."""
    return [r[name] for r in records if (r["experiment"], r["way"]) == (experiment, way)]


def ways(records: Sequence[Record], experiment: str) -> list[str]:
    """The measured proxies, in order."""
    return list(dict.fromkeys(r["way"] for r in records if r["experiment"] == experiment))


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Format the median, and the lowest and highest of the rounds."""
    if not values:
        return "–"
    text = f"**{median(values):.{digits}f}**"
    return text if len(values) == 1 else f"{text} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def added(records: Sequence[Record], experiment: str, way: str, name: str) -> list[float]:
    """Overhead of a proxy over the direct connection, round by round."""
    pairs = zip(of(records, experiment, way, name), of(records, experiment, "direct", name), strict=True)
    return [through - straight for through, straight in pairs]


def table(report: Record) -> str:
    """Markdown tables of every experiment that ran."""
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


def _lines(title: str, heads: str, rows: Sequence[Sequence[str]]) -> str:
    """A title and its table; `heads` are column names separated by bars."""
    lines = [f"{title}\n", f"| way | {heads} |", "|---" * (heads.count("|") + 2) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _latency(records: Sequence[Record], kind: str, rate: float, sizes: Record) -> str:
    what = f"{sizes['events']} events {sizes['gap'] * 1000:g} ms apart" if kind == "stream" else "whole answers"
    title = f"`{kind}`: {rate:g} requests/s of {sizes['prompt_bytes'] / 1000:g} kB, {what}; a core for the proxy."
    rows = []
    for way in ways(records, kind):
        plus = [spread(added(records, kind, way, f"first_{p}_ms")) for p in ("p50", "p99")]
        plus.append(spread(of(records, kind, way, "cpu_ms"), 3))
        own = [""] * 3 if way == "direct" else plus
        rows.append([way, *_times(records, kind, way), *own, _errors(records, kind, way)])
    heads = "first byte p50 ms | p99 ms | added p50 ms | added p99 ms | CPU ms a request | errors"
    return _lines(title, heads, rows)


def _times(records: Sequence[Record], kind: str, way: str, digits: int = 2) -> list[str]:
    return [spread(of(records, kind, way, f"first_{p}_ms"), digits) for p in ("p50", "p99")]


def _errors(records: Sequence[Record], kind: str, way: str) -> str:
    return f"{sum(of(records, kind, way, 'errors')):.0f}"


def _flat_out(records: Sequence[Record], sizes: Record) -> str:
    title = f"`flat-out`: {sizes['flat_out_connections']} connections that ask again at once."
    figures = (("per_second", 0), ("cpu_ms", 3), ("total_p99_ms", 2))
    rows = [
        [way, *(spread(of(records, "flat-out", way, name), digits) for name, digits in figures),
         _errors(records, "flat-out", way)]
        for way in ways(records, "flat-out")
    ]  # fmt: skip
    return _lines(title, "requests/s | CPU ms a request | total p99 ms | errors", rows)


def _crowd(records: Sequence[Record], sizes: Record) -> str:
    title = f"`crowd`: {sizes['crowd']} streams of {sizes['crowd_events']} events {sizes['crowd_gap']:g} s apart."
    names = ("at_once", "answers", "errors", "first_p50_ms", "first_p99_ms")
    found = [r for r in records if r["experiment"] == "crowd"]
    rows = [[r["way"], *(f"{r[name]:.1f}".removesuffix(".0") for name in names)] for r in found]
    return _lines(title, "most at once | complete | errors | first byte p50 ms | p99 ms", rows)


def _prefix(records: Sequence[Record], talk: Record) -> str:
    title = (
        f"`prefix`: {talk['conversations']} conversations of {talk['turns']} turns, {talk['systems']} system prompts; "
        f"{talk['pods']} octavo-servers (SmolLM2, a thread and {talk['kv_memory']} of KV each)."
    )
    rows = []
    for way in ways(records, "prefix"):
        found = spread([100 * rate for rate in of(records, "prefix", way, "hit_rate")], 1) + " %"
        shares = [r["requests"] for r in records if (r["experiment"], r["way"]) == ("prefix", way)]
        share = "; ".join("/".join(map(str, share)) for share in shares)
        rows.append([named(way), found, *_times(records, "prefix", way, 0), share, _errors(records, "prefix", way)])
    heads = "prompt tokens found in caches | TTFT p50 ms | TTFT p99 ms | requests a pod | errors"
    return _lines(title, heads, rows)


def named(way: str) -> str:
    """Name of a proxy with its routing policy."""
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
    """Plot one panel per figure: the median of the rounds as a bar, their range as a whisker."""
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
    save(path)
