"""Protocol of a runner: a line is a command with its arguments, the result is one JSON object."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from bench.lib.loads import Load, load

Command = Callable[..., dict[str, Any]]
Generate = Callable[[Load], list[int]]


def serve(
    started: float,
    versions: dict[str, str],
    commands: Mapping[str, Command],
    ready: float | None = None,
    model: Mapping[str, int] | None = None,
) -> None:
    """Run the commands from standard input until it ends. Commands that do not measure time are timed here.

    Times are of `time.time`; `ready` is the time from which the runner could have answered, if earlier than now.
    `model` has sizes of the model: "weight_bytes", what a step reads of it, at least.
    """
    _send({"ready_seconds": round((ready or time.time()) - started, 2), "versions": versions, "model": model or {}})
    for line in sys.stdin:
        name, *arguments = line.split()
        start, cpu_start = time.perf_counter(), time.process_time()
        result = commands[name](*arguments)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        _send({"seconds": round(seconds, 4), "cpu_seconds": round(cpu_seconds, 3)} | result)


def loads(generate: Generate) -> Command:
    """The command "load NAME" of an engine. `generate` returns how many tokens each prompt produced."""

    def run(name: str) -> dict[str, Any]:
        work = load(name)
        produced = generate(work)
        if produced != work.output_lengths:
            sys.exit(f"{work.name}: wanted {work.output_lengths} tokens, got {produced}")
        return {"tokens": work.tokens}

    return run


def _send(message: Mapping[str, object]) -> None:
    # Libraries write to standard output too: the benchmark searches for this prefix.
    print("@bench " + json.dumps(message), flush=True)
