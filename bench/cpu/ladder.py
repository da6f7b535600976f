"""The gain of each technique: python -m bench.cpu.ladder [--rounds 3]. From a naive server, step by step, to Octavo.

One load on the real model, all requests at once: groups that share a long prefix, outputs of mixed length. Every step
keeps the techniques of the steps before it, on a KV pool of the same bytes:

naive       one request at a time
static      a batch runs to its end before the next one forms; every row reserves the longest possible request
continuous  rows are refilled in every step, reservations as before
paged       rows allocate blocks as they grow: the pool's real capacity limits the rows
prefix      blocks of a shared prefix are computed once
chunked     prompts are split into chunks, so that a step stays short and streams continue
quantised   4-bit weights, as the file has them
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from typing import Any

from bench.cpu.runner import Runners
from bench.cpu.systems import bf16_folder, ours
from bench.lib.host import new_report, result_file
from bench.lib.loads import SEED
from bench.lib.plot import BLUE, plt
from bench.lib.plot import save as save_plot
from bench.lib.processes import CACHE
from bench.lib.results import save

LONGEST = 2048  # tokens of the longest request of this ladder's servers: the reservation of a row without paging
POOL_TOKENS = 16 * 1024
KV_BYTES_PER_TOKEN = 23_040  # SmolLM2-135M in bf16


def ladder(model: str, threads: int) -> dict[str, list[str]]:
    """The engine's settings at each step, as arguments of runners/ladder.py."""
    common = [f"threads={threads}", f"max_model_len={LONGEST}", f"kv_memory={POOL_TOKENS * KV_BYTES_PER_TOKEN}"]
    whole = ["chunked_prefill=false", "max_batched_tokens=2048"]
    reserved = f"max_running_requests={POOL_TOKENS // LONGEST}"
    off, rows = "prefix_caching=false", "max_running_requests=64"
    return {
        "naive": [model, *common, *whole, off, "max_running_requests=1"],
        "static": [model, *common, *whole, off, reserved, "batching=static"],
        "continuous": [model, *common, *whole, off, reserved],
        "paged": [model, *common, *whole, off, rows],
        "prefix": [model, *common, *whole, rows],
        "chunked": [model, *common, rows, "max_batched_tokens=512"],
        "quantised": ["smollm2", *common, rows, "max_batched_tokens=512"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/ladder-<date>.json)")
    given = parser.parse_args()
    output = given.output or result_file("ladder")
    CACHE.mkdir(parents=True, exist_ok=True)
    steps = ladder(bf16_folder(), given.threads)
    rounds: list[dict[str, dict[str, Any]]] = []
    settings = {name: arguments[1:] for name, arguments in steps.items()}
    report = new_report(seed=SEED, requests=given.requests, settings=settings, rounds=rounds)
    for _ in range(given.rounds):
        rounds.append({})
        for name, arguments in steps.items():
            # Loaded again for each turn: seven engines at a time would need seven pools.
            with Runners({name: ours("ladder", *arguments)}, CACHE) as running:
                runner = running.get(name)
                runner.run("load 1")
                rounds[-1][name] = runner.run(f"load {given.requests}")
            save(output, report)
    text = table(list(steps), rounds)
    output.with_suffix(".md").write_text(text, encoding="utf-8")
    plot(list(steps), [_middle(rounds, name, "tokens_per_second") for name in steps], output.with_suffix(".svg"))
    print(f"\n{text}\n{output}")


def plot(names: list[str], rates: list[float], path: Path) -> None:
    """One bar per step."""
    _figure, axes = plt.subplots(figsize=(7, 3.2))
    axes.bar(range(len(names)), rates, color=BLUE, width=0.65)
    for i, rate in enumerate(rates):
        axes.text(i, rate, f"{rate / rates[0]:.1f}×", ha="center", va="bottom")
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("output tokens per second")
    save_plot(path)


def table(names: list[str], rounds: list[dict[str, dict[str, Any]]]) -> str:
    """Markdown, a row per step of the ladder; medians of the rounds."""
    rows = [
        "| step | tokens/s | to naive | first token p50 | inter-token p99 | at once | prompt tokens computed |",
        "|---|---|---|---|---|---|---|",
    ]
    naive = _middle(rounds, names[0], "tokens_per_second")
    for name in names:
        rate = _middle(rounds, name, "tokens_per_second")
        ratios = [r[name]["tokens_per_second"] / r[names[0]]["tokens_per_second"] for r in rounds]
        rows.append(
            f"| {name} | {rate:.1f} | **{rate / naive:.1f}×** ({min(ratios):.1f}–{max(ratios):.1f}) | "
            f"{_middle(rounds, name, 'first_token_s'):.1f} s | {_middle(rounds, name, 'inter_token_p99_ms'):.0f} ms | "
            f"{_middle(rounds, name, 'most_at_once'):.0f} | {_middle(rounds, name, 'prompt_tokens_computed'):,.0f} |"
        )
    return "\n".join(rows) + "\n"


def _middle(rounds: list[dict[str, dict[str, Any]]], name: str, field: str) -> float:
    return float(statistics.median(r[name][field] for r in rounds))


if __name__ == "__main__":
    main()
