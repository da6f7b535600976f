"""From recorded rounds to the table. Pure: samples in, lines and text out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments import Experiment, Line


@dataclass(frozen=True, slots=True)
class Result:
    """A line with what its rounds gave. `figures` has one value per complete round; `ways` the medians behind it."""

    line: Line
    figures: list[float]
    ways: dict[str, float]
    note: str = ""

    @property
    def median(self) -> float:
        """The figure that counts."""
        return statistics.median(self.figures)

    @property
    def met(self) -> bool | None:
        """Whether the bound holds; None without one or without a figure."""
        if self.line.must is None or not self.figures:
            return None
        return self.median <= self.line.must if self.line.at_most else self.median >= self.line.must


def results(experiments: Sequence[Experiment], records: Sequence[dict[str, Any]], unit: str) -> list[Result]:
    """A result per line of the experiments. `unit` is what a rate counts: "seconds" or "cpu_seconds"."""
    found = []
    for experiment in experiments:
        rounds: dict[int, dict[str, dict[str, Any]]] = {}
        notes: dict[str, str] = {}
        for record in records:
            if record["experiment"] != experiment.name:
                continue
            if "error" in record:
                notes[record["way"]] = record["error"]
            else:
                rounds.setdefault(record["round"], {})[record["way"]] = record
        found += [_result(line, list(rounds.values()), notes, unit) for line in experiment.lines]
    return found


def _result(line: Line, rounds: list[dict[str, dict[str, Any]]], notes: dict[str, str], unit: str) -> Result:
    figures: list[float] = []
    values: dict[str, list[float]] = {}
    for samples in rounds:
        here = {w: _value(line, samples[w], unit) for w in (line.of, *line.to) if w in samples}
        for way, value in here.items():
            values.setdefault(way, []).append(value)
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
    """Markdown, a row per line."""
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
        behind = ", ".join(f"{way} {_number(value)}" for way, value in result.ways.items()) if line.to else ""
        rows.append(f"| {line.title} | {must} | {aim} | {measured} | {spread} | {behind} |")
    return "\n".join(rows) + "\n"


def remarks(contestants: dict[str, dict[str, Any]], records: Sequence[dict[str, Any]]) -> str:
    """How long each contestant took to be ready, and what the HTTP client took of the processor."""
    loaded = {n: said for n, said in contestants.items() if n not in {"octavo-start", "roofline"}}
    times = ", ".join(f"{name} {said['ready_seconds']} s" for name, said in loaded.items())
    text = f"Ready after: {times}.\n" if times else ""
    shares = [r["client_cpu_seconds"] / r["cpu_seconds"] for r in records if "client_cpu_seconds" in r]
    if shares:
        text += f"The HTTP client took {100 * statistics.median(shares):.1f} % of the CPU seconds its server took.\n"
    return text


def profile_table(records: Sequence[dict[str, Any]]) -> str:
    """Where a step's milliseconds go, and the floor that memory and arithmetic set; empty without both measurements."""
    limits = [r for r in records if r["experiment"] == "roofline" and "error" not in r]
    profiles = {r["way"]: r for r in records if r["experiment"] == "profile" and "error" not in r}
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
    for way, record in profiles.items():
        for name, parts in record["steps"].items():
            least = floor_ms(name, record["model"], read, compute)
            cells = [parts[p] for p in ("linears", "attention", "lm_head", "elementwise", "sampling", "host")]
            rows.append(
                f"| {way.removeprefix('octavo-')} | {name} | {parts['total']:.1f} | "
                + " | ".join(f"{c:.2f}" for c in cells)
                + f" | {least:.1f} | {100 * least / parts['total']:.0f} % |"
            )
    return "\n".join(rows) + "\n"


def floor_ms(step: str, model: dict[str, int], read: float, compute: float) -> float:
    """Milliseconds that a step takes at least: weights and KV read once, or multiply-adds, whichever is longer."""
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
