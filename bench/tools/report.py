"""Formats the measured rounds as tables. A ratio is to our client's figures just before and after."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median
from typing import Any

OWN = "our client"
ENGINE = "octavo-server bench"
AGREED = 0.03
"""The acceptance criterion, fixed in advance."""
Row = dict[str, Any]
# The figure, its title and its digits. `octavo-server bench` has medians of times, no mean time to first token.
FIGURES = (
    ("rate", "tokens/s", 1),
    ("ttft", "first token, mean ms", 1),
    ("ttft_p50", "first token, p50 ms", 1),
    ("itl", "between tokens, mean ms", 2),
)


def table(report: Row) -> str:
    """Markdown: a table for each load."""
    host = report["host"]
    head = (
        f"{host['processor']}, {host['cores']} cores, load average {report['load_average'][0]:.1f} before; "
        f"{report['date']}. `{' '.join(report['flags'])}`.\n\n"
        f"Medians of the rounds; in brackets their ratio to {OWN} just before and after, the lowest and the highest.\n"
    )
    quick = ["**A quick look with tiny loads: no result.**\n"] if report["quick"] else []
    missing = [f"{name} is left out: {why}\n" for name, why in report["left_out"].items()]
    tables = [_table(report["rows"], load["name"], load["judged"]) for load in report["loads"]]
    return "\n".join([head, *quick, *missing, *tables])


def _table(rows: Sequence[Row], load: str, judged: Sequence[str]) -> str:
    found = [row for row in rows if row["load"] == load]
    ways = list(dict.fromkeys(row["way"] for row in found))
    heads = ["way", *(title for _, title, _ in FIGURES), f"{', '.join(judged)} within {AGREED:.0%}", "client CPU s"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [f"| {' | '.join([way, *_cells(found, way, judged)])} |" for way in ways]
    return f"{load}:\n\n" + "\n".join(lines) + "\n"


def _cells(rows: Sequence[Row], way: str, judged: Sequence[str]) -> list[str]:
    mine = [row for row in rows if row["way"] == way]
    if errors := [row["error"] for row in mine if "error" in row]:
        return [errors[0].splitlines()[0], *[""] * (len(FIGURES) + 1)]
    shown = [_cell(rows, way, name, digits) for name, _, digits in FIGURES]
    seconds = f"{median(row['client_cpu_s'] for row in mine):.1f}"
    return [*shown, "" if way == OWN else _verdict(rows, way, judged), seconds]


def _cell(rows: Sequence[Row], way: str, name: str, digits: int) -> str:
    values = [row[name] for row in rows if row["way"] == way and row[name] is not None]
    if not values:
        return "–"
    text = f"{median(values):.{digits}f}"
    found = ratios(rows, way, name)
    if way == OWN or not found:
        return text
    return f"{text} (**{median(found):.3f}**, {min(found):.3f}–{max(found):.3f})"


def ratios(rows: Sequence[Row], way: str, name: str) -> list[float]:
    """A figure of a way over that of our client, the mean of the runs just before and after, round by round."""
    found = []
    for before, row, after in zip(rows, rows[1:], rows[2:], strict=False):
        around: list[float] = [one[name] for one in (before, after) if one["way"] == OWN and one.get(name)]
        if row["way"] == way and row.get(name) and len(around) == 2:
            found.append(row[name] / mean(around))
    return found


def _verdict(rows: Sequence[Row], way: str, judged: Sequence[str]) -> str:
    found = {name: each for name in judged if (each := ratios(rows, way, name))}
    off = [name for name, each in found.items() if abs(median(each) - 1) > AGREED]
    return f"✗ {', '.join(off)}" if off else "✓"
