"""Formats result files as Markdown tables. Pure, standard library only."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.lib.results import GOOD, Row

COLUMNS: dict[str, str] = {
    "load": "model way tokens_per_s ceiling of_ceiling decode_idle decode_idle_most idle_most decode_ms_p50 "
    "decode_ms_p99 host_ms_p50 host_ms_p99 many_host_ms_p50 launch_ms_p50 preemptions graphs replays",
    "decode": "model weights kv context batch step_ms tokens_per_s gb of_bandwidth of_sheet_bandwidth host_ms",
    "adapters": "model adapters rank batch context step_ms plain_ms of_plain",
    "ttft": "model tokens ttft_ms least_ms most_ms prompt_tokens_per_s of_flops of_sheet_flops",
    "anchors": "key us flash_us cudnn_us library_us of_bandwidth of_flops",
    "formats": "key us library_us of_bandwidth of_flops",
    "launches": "key host_ms host_ms_most step_ms kernels us_a_kernel replays",
    "timeline": "model batch step_ms_p50 host_ms_p50 launch_ms_p50 idle_most kernel_idle kernels_a_step longest",
    "tiles": "key best_us rules_us else_us",
    "start": "model way ready_s compiled write_s phases",
    "peer": "model engine tokens_per_s start_s",
}
"""Columns of each table, by part: bench/README.md explains them."""
SHARES = {"of_ceiling", "decode_idle", "decode_idle_most", "idle_most", "kernel_idle"}
WHOLE = {"tokens_per_s", "prompt_tokens_per_s", "ceiling", "start_s", "write_s", "kernels_a_step", "graph_bytes"}


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on the median of a figure, over the rows of a part with certain values."""

    name: str
    part: str
    figure: str
    at_least: float | None = None
    at_most: float | None = None
    where: dict[str, Any] = field(default_factory=dict)

    def measured(self, rows: Sequence[Row]) -> str:
        """The median of the part's rows, and whether it meets its bound; empty where nothing was measured."""
        alike = (row for row in rows if all(row.get(name) == value for name, value in self.where.items()))
        values = [row[self.figure] for row in alike if row.get(self.figure) is not None]
        if not values:
            return ""
        median = statistics.median(values)
        if self.at_least is None and self.at_most is None:
            return f"**{text(self.figure, median)}**"
        low = self.at_least is not None and median < self.at_least
        high = self.at_most is not None and median > self.at_most
        return f"**{text(self.figure, median)}** {'✗' if low or high else '✓'}"

    @property
    def bound(self) -> str:
        """The bound as the table shows it."""
        if self.at_least is not None:
            return f"≥ {text(self.figure, self.at_least)}"
        return "" if self.at_most is None else f"≤ {text(self.figure, self.at_most)}"


_SMALL = {"model": "qwen3-0.6b", "way": "sampled"}
_STEP = {"model": "llama-8b", "weights": "bf16", "kv": "auto", "batch": 1, "context": 512}
_MIXED = {"step": "mixed", "way": "graph"}
GOALS = (
    Goal("nano-vllm's load, Qwen3-0.6B shape, of this card's ceiling", "load", "of_ceiling", at_least=0.8,
         where=_SMALL),
    Goal("the same, tok/s", "load", "tokens_per_s", where=_SMALL),
    Goal("nano-vllm's load, Qwen3-14B shape, of this card's ceiling", "load", "of_ceiling", at_least=0.8,
         where=_SMALL | {"model": "qwen3-14b"}),
    Goal("batch 1, Llama-8B shape, bf16: share of a copy's bandwidth", "decode", "of_bandwidth", at_least=0.85,
         where=_STEP),
    Goal("host time of a mixed step, Qwen3-0.6B shape, ms", "launches", "host_ms", at_most=0.5,
         where=_MIXED | {"model": "qwen3-0.6b"}),
    Goal("GPU idle share at most, decodes of at least 32 rows, Qwen3-0.6B shape", "load", "decode_idle_most",
         at_most=0.03, where=_SMALL),
    Goal("the same, Llama-8B shape", "load", "decode_idle_most", at_most=0.03, where=_SMALL | {"model": "llama-8b"}),
    *(
        Goal(f"64 decodes with {count} adapters of rank 16, Llama-8B shape: time of a step without", "adapters",
             "of_plain", at_most=bound, where={"model": "llama-8b", "adapters": count})
        for count, bound in ((1, 1.1), (8, 1.25), (64, 1.5))
    ),
    Goal("start to ready, Llama-8B shape, kernels in the cache, s", "start", "ready_s", at_most=20.0,
         where={"model": "llama-8b", "way": "warm"}),
)  # fmt: skip


def markdown(reports: Mapping[str, Row], steps: Sequence[Row] = ()) -> str:
    """A table of each result file by its name, then failures, the steps of a first run, and the goals it measured."""
    lines: list[str] = []
    for name, report in reports.items():
        columns, good = COLUMNS.get(report["part"]), [row for row in report["rows"] if row["verdict"] == "ok"]
        if columns and good:
            lines += [f"## {name}", "", *table(good, columns.split()), ""]
    for name, report in reports.items():
        bad = [row for row in report["rows"] if row["verdict"] not in GOOD]
        lines += [f"FAILED {name}: {row['key']}: {row['verdict']}: {_reason(row)}" for row in bad]
    lines += ["", *(about(report) for report in list(reports.values())[:1])]
    if steps:
        lines += ["| step | status | s | rows | bad | kernels compiled | |", "|---|---|--:|--:|--:|--:|---|"]
    for step in steps:
        cells = (str(step.get(name, "")) for name in ("name", "status", "seconds", "rows", "bad", "compiled", "why"))
        lines.append(f"| {' | '.join(cells)} |")
    if any(report["interpreted"] for report in reports.values()):
        return "\n".join([*lines, "", "Interpreted on the CPU at tiny sizes: this proves the program, not a figure."])
    measured = [(goal, goal.measured(rows_of(list(reports.values()), goal.part))) for goal in GOALS]
    lines += ["", "| goal | must | measured |", "|---|---|---|"] if any(words for _, words in measured) else []
    return "\n".join(lines + [f"| {goal.name} | {goal.bound} | {words} |" for goal, words in measured if words])


def _reason(row: Row) -> str:
    if "why" in row:
        return str(row["why"]).partition("\n")[0]
    return ", ".join(f"{name} {value:.4g}" for name, value in row.items() if isinstance(value, float))


def rows_of(reports: Sequence[Row], part: str) -> list[Row]:
    """Rows of all files of a part."""
    return [row for report in reports if report["part"] == part for row in report["rows"]]


def about(report: Row) -> str:
    """One sentence about the machine."""
    peak, sheet, versions = report["peaks"], report.get("data_sheet"), report["versions"]
    words = f"{report['card'] or 'no GPU'}: a copy reaches {peak['bandwidth'] / 1e12:.3g} TB/s"
    words += f" (data sheet {sheet['bandwidth'] / 1e12:.3g})" if sheet else ""
    words += f", a bf16 product {peak['bf16'] / 1e12:.4g} TFLOP/s"
    words += f" (data sheet {sheet['bf16'] / 1e12:.4g})" if sheet else ""
    return words + f". torch {versions['torch']}, CUDA {versions['cuda']}, triton {versions['triton']}.\n"


def table(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Lines of a Markdown table; columns without a value in any row are left out."""
    shown = [name for name in names if any(row.get(name) is not None for row in rows)]
    head = ["| " + " | ".join(name.replace("_", " ") for name in shown) + " |", "|" + "---|" * len(shown)]
    return head + ["| " + " | ".join(text(name, row.get(name)) for name in shown) + " |" for row in rows]


def text(name: str, value: Any) -> str:
    """Format a figure by its name."""
    if value is None:
        return ""
    if name in SHARES or name.startswith("of_"):
        return f"{100 * value:.1f} %"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if isinstance(value, int) or name in WHOLE else f"{value:,.2f}"
