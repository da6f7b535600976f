"""Formats recorded rounds as a table and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cpu.experiments import Experiment, Line
from bench.lib.plot import BLUE, GREY, RED, plt, save


@dataclass(frozen=True, slots=True)
class Result:
    """A line of the table with its figures: one per complete round, and the medians of the compared systems."""

    line: Line
    figures: list[float]
    systems: dict[str, float]
    note: str = ""

    @property
    def median(self) -> float:
        """The reported figure."""
        return statistics.median(self.figures)

    @property
    def met(self) -> bool | None:
        """Whether the bound holds; None without a bound or a figure."""
        if self.line.must is None or not self.figures:
            return None
        return self.median <= self.line.must if self.line.at_most else self.median >= self.line.must


def results(experiments: Sequence[Experiment], records: Sequence[dict[str, Any]], unit: str) -> list[Result]:
    """A result per line of the experiments. `unit` is the denominator of rates: "seconds" or "cpu_seconds"."""
    found = []
    for experiment in experiments:
        rounds: dict[int, dict[str, dict[str, Any]]] = {}
        notes: dict[str, str] = {}
        for record in records:
            if record["experiment"] != experiment.name:
                continue
            if "error" in record:
                notes[record["system"]] = record["error"]
            else:
                rounds.setdefault(record["round"], {})[record["system"]] = record
        found += [_result(line, list(rounds.values()), notes, unit) for line in experiment.lines]
    return found


def _result(line: Line, rounds: list[dict[str, dict[str, Any]]], notes: dict[str, str], unit: str) -> Result:
    figures: list[float] = []
    values: dict[str, list[float]] = {}
    for samples in rounds:
        here = {w: _value(line, samples[w], unit) for w in (line.of, *line.to) if w in samples}
        for system, value in here.items():
            values.setdefault(system, []).append(value)
        others = [here[w] for w in line.to if w in here]
        if line.of in here and not line.to:
            figures.append(here[line.of])
        elif line.of in here and others:
            ratio = min(others) / here[line.of] if line.inverse else here[line.of] / max(others)
            figures.append(100 * ratio if line.unit == "%" else ratio)
    note = "; ".join(notes[w] for w in (line.of, *line.to) if w in notes)
    return Result(line, figures, {w: statistics.median(v) for w, v in values.items()}, note)


def _value(line: Line, sample: dict[str, Any], unit: str) -> float:
    return float(sample["tokens"] / sample[unit] if line.value == "rate" else sample[line.value])


def table(found: Sequence[Result]) -> str:
    """Format the results as Markdown, a row per line."""
    rows = ["| what | must | aim | measured | rounds | behind it |", "|---|---|---|---|---|---|"]
    for result in found:
        line = result.line
        bound = "≤" if line.at_most else "≥"
        must, aim = (f"{bound} {_number(v)} {line.unit}" if v is not None else "" for v in (line.must, line.aim))
        if result.figures:
            mark = {True: " ✓", False: " ✗", None: ""}[result.met]
            measured = f"**{_number(result.median)} {line.unit}**{mark}"
            spread = ", ".join(map(_number, result.figures))
        else:
            measured, spread = f"not measured{': ' + result.note if result.note else ''}", ""
        behind = ", ".join(f"{system} {_number(value)}" for system, value in result.systems.items()) if line.to else ""
        rows.append(f"| {line.title} | {must} | {aim} | {measured} | {spread} | {behind} |")
    return "\n".join(rows) + "\n"


def remarks(systems: dict[str, dict[str, Any]], records: Sequence[dict[str, Any]]) -> str:
    """Each system's time to ready, and the HTTP client's share of the CPU time."""
    loaded = {n: said for n, said in systems.items() if n not in {"octavo-start", "roofline"}}
    times = ", ".join(f"{name} {said['ready_seconds']} s" for name, said in loaded.items())
    text = f"Ready after: {times}.\n" if times else ""
    shares = [r["client_cpu_seconds"] / r["cpu_seconds"] for r in records if "client_cpu_seconds" in r]
    if shares:
        text += f"The HTTP client took {100 * statistics.median(shares):.1f} % of the CPU seconds its server took.\n"
    return text


def plot(found: Sequence[Result], path: Path) -> None:
    """Plot ratios as bars, the range of their rounds as whiskers, the goal as a tick. Other units are left out."""
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


def profile_table(records: Sequence[dict[str, Any]]) -> str:
    """Milliseconds per part of a step, and the roofline's minimum; empty without both measurements."""
    limits = [r for r in records if r["experiment"] == "roofline" and "error" not in r]
    profiles = {r["system"]: r for r in records if r["experiment"] == "profile" and "error" not in r}
    if not limits or not profiles:
        return ""
    read = max(r["read_gb_per_s"] for r in limits)
    compute = max(r["fp32_gflops"] for r in limits)
    rows = [
        f"Memory reads {read:.1f} GB/s, fp32 multiply-adds {compute:.0f} GFLOP/s (both threads, best of the run).",
        "",
        "| weights | step | ms | linears | attention | lm_head | elementwise | sampling | host | floor | of floor |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for system, record in profiles.items():
        for name, parts in record["steps"].items():
            least = floor_ms(name, record["model"], read, compute)
            cells = [parts[p] for p in ("linears", "attention", "lm_head", "elementwise", "sampling", "host")]
            rows.append(
                f"| {system.removeprefix('octavo-')} | {name} | {parts['total']:.1f} | "
                + " | ".join(f"{c:.2f}" for c in cells)
                + f" | {least:.1f} | {100 * least / parts['total']:.0f} % |"
            )
    return "\n".join(rows) + "\n"


def floor_ms(step: str, model: dict[str, int], read: float, compute: float) -> float:
    """Minimum milliseconds of a step: reading weights and KV once, or the multiply-adds, whichever is longer."""
    kind, number = step.split()
    tokens = int(number)
    sampled = tokens if kind == "decode" else 3
    flops = 2 * (model["linear_parameters"] * tokens + model["head_parameters"] * sampled)
    context = tokens * model["context"] if kind == "decode" else 0
    bytes_read = model["weight_bytes"] + context * model["kv_bytes_per_token"]
    return max(1e3 * bytes_read / (read * 1e9), 1e3 * flops / (compute * 1e9))


def _number(value: float) -> str:
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
