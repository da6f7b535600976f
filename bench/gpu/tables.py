"""Result files as Markdown tables and plots. Pure but for the files."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from files import read

Row = dict[str, Any]
Report = dict[str, Any]

COLUMNS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "load": (
        ("model", "model", ""),
        ("way", "tokens", ""),
        ("tokens_per_s", "tok/s", "0f"),
        ("ceiling", "ceiling", "0f"),
        ("of_ceiling", "of ceiling", "share"),
        ("decode_idle", "GPU idle, ≥ 32 rows: at least", "share"),
        ("decode_idle_most", "at most", "share"),
        ("idle_most", "all steps, at most", "share"),
        ("decode_ms_p50", "step p50, ms", "2f"),
        ("decode_ms_p99", "p99", "2f"),
        ("host_ms_p50", "host p50, ms", "2f"),
        ("host_ms_p99", "p99", "2f"),
        ("many_host_ms_p50", "of ≥ 200 rows p50, ms", "2f"),
        ("launch_ms_p50", "launch p50, ms", "2f"),
        ("preemptions", "preempted", "0f"),
        ("graphs", "graphs", "0f"),
        ("replays", "steps by them", "0f"),
    ),
    "decode": (
        ("model", "model", ""),
        ("weights", "weights", ""),
        ("kv", "KV", ""),
        ("context", "context", "0f"),
        ("batch", "batch", "0f"),
        ("step_ms", "step, ms", "3f"),
        ("tokens_per_s", "tok/s", "0f"),
        ("gb", "read, GB", "2f"),
        ("of_bandwidth", "of a copy's rate", "share"),
        ("of_sheet_bandwidth", "of the data sheet's", "share"),
        ("host_ms", "host, ms", "2f"),
    ),
    "ttft": (
        ("model", "model", ""),
        ("tokens", "prompt", "0f"),
        ("ttft_ms", "first token, ms", "2f"),
        ("least_ms", "least", "2f"),
        ("most_ms", "most", "2f"),
        ("prompt_tokens_per_s", "prompt tok/s", "0f"),
        ("of_flops", "of measured FLOP/s", "share"),
        ("of_sheet_flops", "of the data sheet's", "share"),
    ),
    "kernels": (
        ("model", "model", ""),
        ("kernel", "kernel", ""),
        ("shape", "shape", ""),
        ("us", "µs", "1f"),
        ("least_us", "least", "1f"),
        ("of_bandwidth", "of a copy's rate", "share"),
        ("of_sheet_bandwidth", "of the data sheet's", "share"),
        ("of_flops", "of bf16 FLOP/s", "share"),
        ("of_sheet_flops", "of the data sheet's", "share"),
    ),
    "ablation": (
        ("key", "what", ""),
        ("gain_median", "slower without it", "×"),
        ("gain_least", "least", "×"),
        ("gain_most", "most", "×"),
        ("same_tokens", "same greedy tokens", "share"),
    ),
    "timeline": (
        ("model", "model", ""),
        ("batch", "batch", "0f"),
        ("step_ms_p50", "step, ms", "2f"),
        ("host_ms_p50", "host, ms", "2f"),
        ("launch_ms_p50", "launch, ms", "2f"),
        ("idle_most", "idle between steps, at most", "share"),
        ("kernel_idle", "idle between kernels", "share"),
        ("kernels_a_step", "kernels a step", "0f"),
    ),
    "tiles": (
        ("key", "product", ""),
        ("best_us", "best tile, µs", "1f"),
        ("rules_us", "tile of the rules", "1f"),
        ("else_us", "without gemv", "1f"),
    ),
    "start": (
        ("model", "model", ""),
        ("way", "kernel cache", ""),
        ("ready_s", "process start to ready, s", "1f"),
        ("compiled", "files of kernels compiled", "0f"),
        ("write_s", "writing the folder, s", "0f"),
        ("phases", "phases", ""),
    ),
    "peer": (
        ("model", "model", ""),
        ("engine", "engine", ""),
        ("tokens_per_s", "tok/s", "0f"),
        ("start_s", "start, s", "0f"),
    ),
}
"""Figure, heading and form of each column, by part."""


def write_report(folder: Path) -> Path:
    """README.md beside the JSON files of a folder, with plots where matplotlib is installed."""
    reports = [read(path) for path in sorted(folder.glob("*.json")) if path.name != "all.json"]
    text = markdown([report for report in reports if report])
    try:
        import drawing  # noqa: PLC0415  matplotlib is not everywhere

        plots = drawing.draw([report for report in reports if report], folder)
    except ImportError as error:
        text += f"\nNo plots: {error}.\n"
    else:
        text += "".join(f"\n![{path.stem}]({path.name})\n" for path in plots)
    path = folder / "README.md"
    path.write_text(text, encoding="utf-8")
    return path


def markdown(reports: Sequence[Report]) -> str:
    """The goals, then a table for each part."""
    lines = ["# Measured on a GPU", ""]
    measured = [report for report in reports if "part" in report]
    lines += [about(report) for report in measured[:1]]
    if any(report["interpreted"] for report in measured):
        lines += ["**Interpreted on the CPU at tiny sizes: this proves the program, its figures mean nothing.**", ""]
    lines += ["| goal | must | measured |", "|---|---|---|"]
    lines += [f"| {name} | {must} | {goal(measured)} |" for name, must, goal in GOALS]
    for part, columns in COLUMNS.items():
        rows = [row for report in measured if report["part"] == part for row in report["rows"]]
        good = [row for row in rows if row["verdict"] == "ok"]
        if good:
            lines += ["", f"## {part}", "", *table(good, columns)]
        lines += [f"- {row['key']}: {row['verdict']}: {row['why'].splitlines()[0]}" for row in rows if "why" in row]
    for report in reports:
        if "kernels" in report or "engine" in report:
            lines += ["", *checked(report)]
    return "\n".join(lines) + "\n"


def about(report: Report) -> str:
    """The machine, in a sentence."""
    peak, sheet, versions = report["peaks"], report.get("data_sheet"), report["versions"]
    told = f"{report['card'] or 'no GPU'}: a copy reaches {peak['bandwidth'] / 1e12:.3g} TB/s"
    told += f" (data sheet {sheet['bandwidth'] / 1e12:.3g})" if sheet else ""
    told += f", a bf16 product {peak['bf16'] / 1e12:.4g} TFLOP/s" + (f" ({sheet['bf16'] / 1e12:.4g})" if sheet else "")
    told += f", an fp8 product {peak['fp8'] / 1e12:.4g}" if peak["fp8"] else ""
    return told + f". torch {versions['torch']}, CUDA {versions['cuda']}, triton {versions['triton']}.\n"


def table(rows: Sequence[Row], columns: Sequence[tuple[str, str, str]]) -> list[str]:
    """Lines of Markdown; columns that no row has are left out."""
    shown = [column for column in columns if any(row.get(column[0]) is not None for row in rows)]
    head = [
        "| " + " | ".join(title for _, title, _ in shown) + " |",
        "|" + "".join("--:|" if form else "---|" for *_, form in shown),
    ]
    return head + ["| " + " | ".join(text(row.get(name), form) for name, _, form in shown) + " |" for row in rows]


def text(value: Any, form: str) -> str:
    """A figure as its column shows it."""
    if value is None:
        return ""
    if form == "share":
        return f"{100 * value:.1f} %"
    if form == "×":
        return f"{value:.2f} ×"
    return f"{value:,.{form[0]}f}" if form else str(value)


def checked(report: Report) -> list[str]:
    """What `check` found, in lines."""
    rows = [*report.get("kernels", []), *report.get("engine", [])]
    bad = [row for row in rows if row["verdict"] not in {"ok", "refused"}]
    lines = ["## check", "", f"{len(rows) - len(bad)} of {len(rows)} good."]
    names = [row.get("model") or f"{row['kernel']} {row['variant']}" for row in bad]
    return lines + [f"- {name}: {row['verdict']} {row.get('why', '')}" for name, row in zip(names, bad, strict=True)]


def _best(
    part: str, figure: str, form: str, at_least: float | None, at_most: float | None, **where: Any
) -> Callable[[Sequence[Report]], str]:
    """The median of the rows of a part with certain values, and whether it meets its bound."""

    def goal(reports: Sequence[Report]) -> str:
        measured = [report for report in reports if report["part"] == part and not report["interpreted"]]
        rows = [row for report in measured for row in report["rows"]]
        values = [
            row[figure]
            for row in rows
            if row.get(figure) is not None and all(row.get(name) == value for name, value in where.items())
        ]
        if not values:
            return "not measured"
        median = statistics.median(values)
        met = (at_least is None or median >= at_least) and (at_most is None or median <= at_most)
        return f"**{text(median, form)}** {'✓' if met else '✗'}"

    return goal


GOALS: tuple[tuple[str, str, Callable[[Sequence[Report]], str]], ...] = (
    (
        "nano-vllm's load, Qwen3-0.6B shape, one H200",
        "≥ 30,000 tok/s",
        _best("load", "tokens_per_s", "0f", 30_000, None, model="qwen3-0.6b", way="sampled"),
    ),
    (
        "nano-vllm's load, Qwen3-14B shape, one H200",
        "≥ 6,100 tok/s",
        _best("load", "tokens_per_s", "0f", 6_100, None, model="qwen3-14b", way="sampled"),
    ),
    (
        "batch 1, Llama-8B shape, bf16: share of the data sheet's bandwidth",
        "≥ 85 %",
        _best(
            "decode",
            "of_sheet_bandwidth",
            "share",
            0.85,
            None,
            model="llama-8b",
            weights="bf16",
            kv="auto",
            batch=1,
            context=512,
        ),
    ),
    (
        "the same, of a copy's rate",
        "",
        _best(
            "decode",
            "of_bandwidth",
            "share",
            None,
            None,
            model="llama-8b",
            weights="bf16",
            kv="auto",
            batch=1,
            context=512,
        ),
    ),
    (
        "GPU idle share at most, decodes of at least 32 rows, Qwen3-0.6B shape",
        "< 3 %",
        _best("load", "decode_idle_most", "share", None, 0.03, model="qwen3-0.6b", way="sampled"),
    ),
    (
        "the same, Llama-8B shape",
        "< 3 %",
        _best("load", "decode_idle_most", "share", None, 0.03, model="llama-8b", way="sampled"),
    ),
    (
        "host work of a step, decodes of at least 200 sequences, Qwen3-0.6B shape, p50",
        "< 3 ms",
        _best("load", "many_host_ms_p50", "2f", None, 3.0, model="qwen3-0.6b", way="sampled"),
    ),
    (
        "start to ready, Llama-8B shape, kernels in the cache",
        "≤ 20 s",
        _best("start", "ready_s", "1f", None, 20.0, model="llama-8b", way="warm"),
    ),
)
