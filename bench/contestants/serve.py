"""How a contestant talks to the bench: a line names a load, one JSON object tells the measurement."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from loads import Load, load

Generate = Callable[[Load], list[int]]


def serve(started: float, versions: dict[str, str], generate: Generate) -> None:
    """Run the loads named on standard input until it ends. `generate` returns how many tokens each prompt produced."""
    _tell({"ready_seconds": round(time.time() - started, 2), "versions": versions})
    for line in sys.stdin:
        work = load(line.strip())
        start, cpu_start = time.perf_counter(), time.process_time()
        produced = generate(work)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        if produced != work.output_lengths:
            sys.exit(f"{work.name}: wanted {work.output_lengths} tokens, got {produced}")
        _tell(
            {
                "load": work.name,
                "seconds": round(seconds, 3),
                "cpu_seconds": round(cpu_seconds, 3),
                "output_tokens": work.output_tokens,
            }
        )


def _tell(message: dict[str, object]) -> None:
    # Libraries write to standard output too: the bench looks for this mark.
    print("@bench " + json.dumps(message), flush=True)
