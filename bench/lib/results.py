"""Result files, and the list of experiments that fills one: a rerun does those that the file has not.

    {"part": ..., "rows": [{"key": ..., "verdict": "ok", ...}], "complete": false}

The file is written whole after every row, so a kill loses the row that was being measured. A row that fails is kept
with its traceback and the rest goes on, unless the GPU itself stays failed: then the process ends with `LOST`, and
another process goes on behind the row.
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
"""Exit status of a process that has more to do: call it again (EX_TEMPFAIL of sysexits)."""
GOOD = frozenset({"ok", "refused", "compiled"})
"""Verdicts of rows that found nothing wrong."""
_SAFETY = 1.2
_SHOWN = 7


@dataclass(frozen=True, slots=True)
class Item:
    """An experiment: `run` gives the figures of its row, with a "verdict" where that is not "ok"."""

    key: str
    run: Callable[[], Row]


def save(path: Path, report: Row) -> None:
    """Write the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def read(path: Path) -> Row | None:
    """A result file; None where there is none, or something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def opened(path: Path, identity: Row) -> Row:
    """The report of a file with the same identity (part, arguments, card), or a new one. SystemExit on another's."""
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
    """Do the items that the report has no row for, while there is time. Whether all is done.

    `alive` raises when the GPU is gone, which ends the process with `LOST`.
    """
    end, longest = clock() + seconds, 0.0
    done = {row["key"] for row in report["rows"]}
    for number, item in enumerate(item for item in items if item.key not in done):
        # One row a run at least: or no number of runs would ever be enough.
        if number and clock() + _SAFETY * longest >= end:
            say(f"{end - clock():.0f} s are left: the rest is for the next run")
            return False
        begin = clock()
        row: Row = {"key": item.key} | attempt(item.run)
        took = clock() - begin
        row |= {"seconds": round(took, 3)}
        longest = max(longest, took) if number else 0.0  # the first row of a run loads a model, too
        report["rows"].append(row)
        save(path, report)
        say(f"{item.key:58} {describe(row)}")
        if row["verdict"] == "failed":
            end_if_lost(alive, say)
    report["complete"] = True
    save(path, report)
    return True


def attempt(run: Callable[[], Row]) -> Row:
    """A row of figures and a verdict: "ok" where nothing else is said, "failed" with the reason for an exception."""
    try:
        return {"verdict": "ok"} | run()
    except Exception as error:  # noqa: BLE001  one row's fault is not the others'
        trace = traceback.format_exc()
        return {"verdict": "failed", "why": f"{type(error).__name__}: {error}", "traceback": trace}


def end_if_lost(alive: Callable[[], object], say: Say) -> None:
    """SystemExit when the GPU stays failed: all later rows would fail for the one that broke it."""
    try:
        alive()
    except Exception as error:
        say(f"the GPU stays failed ({error}): another process must go on")
        raise SystemExit(LOST) from error


def describe(row: Row) -> str:
    """A row's verdict and numbers, for people."""
    if "why" in row:
        return f"{row['verdict']}: {(row['why'].splitlines() or [''])[0]}"
    figures = [f"{name} {value:.4g}" for name, value in row.items() if isinstance(value, float)]
    return ", ".join([row["verdict"], *figures[:_SHOWN]])
