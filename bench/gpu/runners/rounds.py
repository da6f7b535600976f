"""Shared by the peers' runners: read the load, run it twice, write the results. Standard library only."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS = 2
Answer = Callable[[list[list[int]], list[int]], list[int]]
"""From prompts and their requested numbers of tokens to the generated numbers."""


def serve(version: str, load: Callable[[str], Answer]) -> None:
    """Run the load. `load` creates a folder's engine. The first round is a warm-up. SystemExit on a short answer."""
    given: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    begin = time.perf_counter()
    answer = load(given["folder"])
    answer([[1, 2, 3]], [2])
    started = time.perf_counter() - begin
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        found = answer(given["prompts"], given["outputs"])
        rounds.append(time.perf_counter() - begin)
        if found != given["outputs"]:
            sys.exit(f"{sum(found)} tokens came out, {sum(given['outputs'])} were asked for")
    result = {"version": version, "start_s": started, "rounds_s": rounds, "tokens": sum(given["outputs"])}
    Path(given["result"]).write_text(json.dumps(result), encoding="utf-8")
