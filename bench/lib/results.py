"""Result files, and the loop over the experiments that fill one: a rerun runs only those missing in the file.

    {"part": ..., "rows": [{"key": ..., "verdict": "ok", ...}], "complete": false}

The file is written whole after every row, so a kill loses only the row in progress. A row that fails is kept with its
traceback, and the other rows continue, unless the GPU stays failed. Then the process ends with `LOST`, and another
process continues after the row.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Say = Callable[[str], None]

LOST = 3
"""Exit status of a process whose GPU stays failed."""
INCOMPLETE = 75
"""Exit status of a process with work left: call it again (EX_TEMPFAIL of sysexits)."""
GOOD = frozenset({"ok", "refused", "compiled"})
"""Verdicts of rows without errors."""
_SAFETY = 1.2
_SHOWN = 7


@dataclass(frozen=True, slots=True)
class Item:
    """An experiment: `run` returns the figures of its row, with a "verdict" unless it is "ok"."""

    key: str
    run: Callable[[], Row]


def save(path: Path, report: Row) -> None:
    """Write the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def read(path: Path) -> Row | None:
    """Read a result file; None where there is none, or an invalid one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def opened(path: Path, identity: Row) -> Row:
    """The report of a file with the same identity (part, arguments, card), or a new one. SystemExit on another."""
    found = read(path)
    if path.exists() and found is None:
        raise SystemExit(f"{path} is no result file: remove it, or give another --out")
    for name, expected in identity.items():
        if found and found.get(name) != expected:
            raise SystemExit(f"{path} has {name} {found.get(name)!r}, this is {expected!r}: give another --out")
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return identity | (found or {"rows": [], "complete": False}) | {"date": date}


def work(
    path: Path, report: Row, items: Iterable[Item], seconds: float, say: Say, *,
    alive: Callable[[], object] = lambda: None, clock: Callable[[], float] = time.monotonic,
) -> bool:  # fmt: skip
    """Run the items without a row in the report, while there is time; returns True when all are done.

    `alive` raises when the GPU is lost, which ends the process with `LOST`.
    """
    end, longest = clock() + seconds, 0.0
    done = {row["key"] for row in report["rows"]}
    for number, item in enumerate(item for item in items if item.key not in done):
        # At least one row per run: otherwise no number of runs would complete.
        if number and clock() + _SAFETY * longest >= end:
            say(f"{end - clock():.0f} s are left: the rest is for the next run")
            return False
        begin = clock()
        row: Row = {"key": item.key} | attempt(item.run)
        took = clock() - begin
        row |= {"seconds": round(took, 3)}
        longest = max(longest, took) if number else 0.0  # the first row of a run also loads a model
        report["rows"].append(row)
        save(path, report)
        say(f"{item.key:58} {describe(row)}")
        if row["verdict"] == "failed":
            end_if_lost(alive, say)
    report["complete"] = True
    save(path, report)
    return True


def attempt(run: Callable[[], Row]) -> Row:
    """A row of figures and a verdict: "ok" by default, "failed" with the reason for an exception."""
    try:
        return {"verdict": "ok"} | run()
    except Exception as error:  # noqa: BLE001  the other rows continue
        trace = traceback.format_exc()
        return {"verdict": "failed", "why": f"{type(error).__name__}: {error}", "traceback": trace}


def end_if_lost(alive: Callable[[], object], say: Say) -> None:
    """SystemExit when the GPU stays failed: all later rows would fail because of the one that broke it."""
    try:
        alive()
    except Exception as error:
        say(f"the GPU stays failed ({error}): another process must go on")
        raise SystemExit(LOST) from error


def describe(row: Row) -> str:
    """Format a row's verdict and numbers for the terminal."""
    if "why" in row:
        return f"{row['verdict']}: {(row['why'].splitlines() or [''])[0]}"
    figures = [f"{name} {value:.4g}" for name, value in row.items() if isinstance(value, float)]
    return ", ".join([row["verdict"], *figures[:_SHOWN]])
