"""Formats recorded rounds as a table and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.cpu.experiments import Experiment, Line
from bench.cpu.floors import Floor, floor, limits, peak
from bench.lib.loads import load
from bench.lib.plot import BLUE, GREY, RED, plt, save


@dataclass(frozen=True, slots=True)
class Result:
    """A line of the table with its figures: one per complete round, and the medians of the compared systems."""

    line: Line
    figures: list[float]
    systems: dict[str, float]
    note: str = ""
    floor: Floor | None = None
    """Least seconds of the load on this machine, of `line.of`."""
    possible: float | None = None
    """The ratio that `floor` allows."""

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


def results(
    experiments: Sequence[Experiment],
    records: Sequence[dict[str, Any]],
    unit: str,
    systems: Mapping[str, dict[str, Any]] | None = None,
    left_out: Mapping[str, str] | None = None,
) -> list[Result]:
    """A result per line of the experiments. `unit` is the denominator of rates: "seconds" or "cpu_seconds".

    `systems`: what each said of itself when it was ready. `left_out`: why a system did not run.
    """
    found = []
    for experiment in experiments:
        rounds: dict[int, dict[str, dict[str, Any]]] = {}
        notes = dict(left_out or {})
        for record in records:
            if record["experiment"] != experiment.name:
                continue
            if "error" in record:
                notes[record["system"]] = record["error"]
            else:
                rounds.setdefault(record["round"], {})[record["system"]] = record
        for line in experiment.lines:
            result = _result(line, list(rounds.values()), notes, unit)
            model = (systems or {}).get(line.of, {}).get("model") or {}
            found.append(_with_floor(result, experiment, model, limits(records, experiment.model), unit))
    return found


def _with_floor(
    result: Result, experiment: Experiment, model: Mapping[str, int], limit: dict[str, float], unit: str
) -> Result:
    line = result.line
    peers = [result.systems[w] for w in line.to if w in result.systems]
    timed = line.value == "rate" and line.unit == "×" and unit == "seconds"
    if not (timed and peers and limit and "linear_parameters" in model and experiment.command.startswith("load ")):
        return result
    work = load(experiment.command.removeprefix("load "))
    least = floor(work, model, limit, bits4="4bit" in line.of)
    return replace(result, floor=least, possible=work.tokens / least.seconds / max(peers))


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
    rows = ["| what | must | aim | measured | rounds | behind it | floor allows |", "|---|---|---|---|---|---|---|"]
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
        rows.append(f"| {line.title} | {must} | {aim} | {measured} | {spread} | {behind} | {_allowed(result)} |")
    return "\n".join(rows) + "\n"


def _allowed(result: Result) -> str:
    if result.possible is None or result.floor is None:
        return ""
    forbids = result.line.must is not None and result.possible < result.line.must
    return f"{_number(result.possible)} × ({result.floor.what}{': below the goal' if forbids else ''})"


def bandwidths(
    experiments: Sequence[Experiment], records: Sequence[dict[str, Any]], systems: Mapping[str, dict[str, Any]]
) -> str:
    """The bandwidth at which each system reads its weights with one stream, beside a plain read; empty without one."""
    rows = [
        "| one stream | system | GB of weights a token | tokens/s | GB/s | plain read, GB/s | share |",
        "|---|---|---|---|---|---|---|",
    ]
    for experiment in experiments:
        read = limits(records, experiment.model).get("read_gb_per_s")
        if read is None or not experiment.command.startswith(("load single-", "load stream-")):
            continue
        for system in experiment.systems:
            found = [r for r in records if (r["experiment"], r["system"]) == (experiment.name, system)]
            rates = [r["tokens"] / r["seconds"] for r in found if "error" not in r]
            size = (systems.get(system, {}).get("model") or {}).get("weight_bytes")
            if rates and size:
                rate = statistics.median(rates)
                reached = rate * size / 1e9
                cells = (experiment.name, system, f"{size / 1e9:.3f}", _number(rate), f"{reached:.1f}", f"{read:.1f}")
                rows.append(f"| {' | '.join(cells)} | {100 * reached / read:.0f} % |")
    return "\n".join(rows) + "\n" if len(rows) > 2 else ""


def machine(limit: Mapping[str, float]) -> str:
    """The machine's limits in a sentence; empty where none were measured."""
    if not limit:
        return ""
    names = {"fp32_gflops": "fp32 multiply-adds", "bf16_gflops": "bf16 pairs", "int8_gops": "bytes"}
    sums = ", ".join(f"{name} {limit[key]:.0f}" for key, name in names.items() if key in limit)
    return f"Memory reads {limit['read_gb_per_s']:.1f} GB/s; 1e9 operations/s: {sums} (all threads, best of the run).\n"


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
    limit = limits(records)
    profiles = {r["system"]: r for r in records if r["experiment"] == "profile" and "error" not in r}
    if not limit or not profiles:
        return ""
    rows = [
        "| weights | step | ms | linears | attention | lm_head | elementwise | sampling | host | floor | of floor |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for system, record in profiles.items():
        for name, parts in record["steps"].items():
            compute, _ = peak(limit, bits4="4bit" in system)
            least = floor_ms(name, record["model"], limit["read_gb_per_s"], compute)
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
