"""What every peer's program does: read the load, answer it twice, write what that took. Standard library only."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS = 2
Answer = Callable[[list[list[int]], list[int]], list[int]]
"""Prompts and how many tokens each must give, to how many it gave."""


def serve(version: str, load: Callable[[str], Answer]) -> None:
    """`load` makes the engine of a folder. The first round fills caches. SystemExit when an answer is too short."""
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
