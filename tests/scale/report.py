"""The verdict, the table and the picture of a run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams |= {"svg.hashsalt": "octavo", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}

import matplotlib.pyplot as plt  # noqa: E402 (the backend is chosen first)
from tests.scale.gauge import Figures, Sample  # noqa: E402

P99_SECONDS = 1.0
RSS_BYTES = 300e6
REST_QPS = 5.0
REST = "rest"


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase: what was done, from which sample on, and what it cost."""

    name: str
    what: str
    began: float
    figures: Figures


def verdict(phases: Sequence[Phase]) -> list[tuple[str, str, bool]]:
    """Each aim: in words, as measured, whether it holds."""
    worst = max(phases, key=lambda phase: phase.figures.p99)
    rss = max(phase.figures.rss for phase in phases)
    rest = next((phase.figures.qps for phase in phases if phase.name == REST), float("inf"))
    return [
        (
            f"99 % of passes take less than {P99_SECONDS:g} s, in every phase",
            f"{worst.figures.p99:.3f} s ({worst.name})",
            worst.figures.p99 < P99_SECONDS,
        ),
        (f"less than {RSS_BYTES / 1e6:.0f} MB of memory", f"{rss / 1e6:.0f} MB", rss < RSS_BYTES),
        (
            f"less than {REST_QPS:g} requests per second at rest",
            f"{rest:.2f}",
            rest < REST_QPS,
        ),
    ]


def table(phases: Sequence[Phase], size: dict[str, int], host: str) -> str:
    """Markdown: the aims, then a row for each phase."""
    heads = ("phase", "seconds", "passes", "p50 ms", "p99 ms", "waited p99 s", "requests", "of them reads", "per s")
    lines = [
        f"{size['nodes']} nodes with 8 GPUs, {size['deployments']} LLMDeployments, {size['pods']} pods; {host}.",
        "",
        "| aim | measured | |",
        "|---|---|---|",
        *(f"| {aim} | {measured} | {'✓' if met else '✗'} |" for aim, measured, met in verdict(phases)),
        "",
        "| " + " | ".join((*heads, "CPU s", "RSS MB")) + " |",
        "|---" * (len(heads) + 2) + "|",
    ]
    for phase in phases:
        found = phase.figures
        cells = (
            phase.what, f"{found.seconds:.0f}", f"{found.passes:.0f}", f"{found.p50 * 1e3:.0f}",
            f"{found.p99 * 1e3:.0f}", f"{found.wait_p99:.1f}", f"{found.requests:.0f}", f"{found.reads:.0f}",
            f"{found.qps:.1f}", f"{found.cpu:.1f}", f"{found.rss / 1e6:.0f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write(path: Path, phases: Sequence[Phase], samples: Sequence[Sample], about: dict[str, Any]) -> None:
    """JSON with everything, the table beside it, and the picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = [{k: v for k, v in asdict(sample).items() if k not in ("work", "wait")} for sample in samples]
    content = {**about, "phases": [asdict(phase) for phase in phases], "samples": shown}
    path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    path.with_suffix(".md").write_text(table(phases, about["size"], about["host"]))
    picture(path.with_suffix(".svg"), phases, samples)


def picture(path: Path, phases: Sequence[Phase], samples: Sequence[Sample]) -> None:
    """Memory, requests and ready replicas over time."""
    start = samples[0].at
    minutes = [(sample.at - start) / 60 for sample in samples]
    pairs = list(itertools.pairwise(samples))
    rates = [max(0.0, b.requests - a.requests) / max(b.at - a.at, 0.01) for a, b in pairs]
    _figure, (memory, calls, ready) = plt.subplots(3, 1, figsize=(8, 5), sharex=True)
    memory.plot(minutes, [sample.rss / 1e6 for sample in samples], color="#2f6fb0")
    memory.axhline(RSS_BYTES / 1e6, color="#b5482f", linewidth=1)
    memory.set_ylabel("RSS, MB")
    calls.plot(minutes[1:], rates, color="#2f6fb0")
    calls.set_ylabel("requests per s")
    ready.plot(minutes, [sample.ready for sample in samples], color="#2f6fb0")
    ready.set_ylabel("ready replicas")
    ready.set_xlabel("minutes")
    for phase in phases:
        at = (phase.began - start) / 60
        for axes in (memory, calls, ready):
            axes.axvline(at, color="#9aa5b1", linewidth=0.7)
        memory.annotate(phase.name, (at, 1), xycoords=("data", "axes fraction"), fontsize=8, rotation=45)
    for axes in (memory, calls, ready):
        axes.set_ylim(bottom=0)
    plt.tight_layout()
    plt.savefig(path, metadata={"Date": None})
    plt.close()
