"""What a part found: a JSON file that is written after every row, and gone on with where a run left it.

    {"part": ..., "arguments": {...}, "gpu": ..., "rows": [{"key": ..., "verdict": "ok", ...}], "complete": false}

A part is a sequence of rows, each with a name of its own and something to do. A run does those that the file has not,
until its seconds are over; a kill loses the row that was being measured. A row that fails is kept with its traceback,
and the rest goes on, unless the GPU itself stays failed: then the process ends, and another one goes on behind the row.
When nothing else is missing, another process tries such a row once more.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from files import LOST, read, save

Row = dict[str, Any]
Kept = TypeVar("Kept")
Say = Callable[[str], None]

TRIES = 2
"""Of a row that fails, each in a process of its own."""
_SAFETY = 1.2
_SHOWN = 7


@dataclass(frozen=True, slots=True)
class Item:
    """A row to measure. `run` gives its figures; "verdict" among them where it is not "ok"."""

    key: str
    run: Callable[[], Row]


@dataclass(slots=True)
class Journal:
    """A result file. `seconds` may be spent from `began` on, by `clock`; `alive` raises when the GPU is gone."""

    path: Path
    report: Row
    seconds: float
    clock: Callable[[], float] = time.monotonic
    began: float = 0.0
    alive: Callable[[], object] = lambda: None

    @property
    def left(self) -> float:
        """Seconds."""
        return self.seconds - (self.clock() - self.began)

    def work(self, items: Iterable[Item], say: Say) -> bool:
        """Do what is missing while there is time. Whether all is done now. Raises `SystemExit` when the GPU is gone."""
        rows, own = self.report["rows"], list(items)
        tries = {row["key"]: row.get("tries", 1) for row in rows}
        missing = [item for item in own if item.key not in tries]
        again = [item for item in own if self._again(item.key)]
        longest: float | None = None
        for number, item in enumerate([*missing, *again]):
            # At least one row a run, however short of time it is: or no number of runs would ever be enough.
            if number and (self.left <= 0 or (longest or 0.0) * _SAFETY > self.left):
                say(f"{self.left:.0f} s are left: the rest is for the next run")
                return False
            begin = self.clock()
            row: Row = {"key": item.key, "verdict": "ok", "tries": tries.get(item.key, 0) + 1}
            try:
                row |= item.run()
            except Exception as error:  # noqa: BLE001  one row's fault is not the others'
                trace = traceback.format_exc()
                row |= {"verdict": "failed", "why": f"{type(error).__name__}: {error}", "traceback": trace}
            took = self.clock() - begin
            # A run's first row loads a model, too.
            longest = max(longest or 0.0, took) if number else None
            row["seconds"] = round(took, 3)
            rows[:] = [*(old for old in rows if old["key"] != item.key), row]
            self.save()
            say(f"{item.key:48} {describe(row)}")
            if row["verdict"] == "failed":
                self._check_gpu(say)
        left = [item.key for item in own if self._again(item.key)]
        if left:
            say(f"{len(left)} rows failed, and are for the next run to try once more")
            return False
        self.report["complete"] = True
        self.save()
        return True

    def _again(self, key: str) -> bool:
        return any(
            row["key"] == key and row["verdict"] == "failed" and row.get("tries", 1) < TRIES
            for row in self.report["rows"]
        )

    def save(self) -> None:
        """Write the file whole or not at all."""
        save(self.path, self.report)

    def _check_gpu(self, say: Say) -> None:
        try:
            self.alive()
        except Exception as error:
            say(f"the GPU stays failed ({error}): another process must go on")
            raise SystemExit(LOST) from error


def opened(path: Path, identity: Row, seconds: float, alive: Callable[[], object]) -> Journal:
    """The file as it is when it is of the same part, arguments and card, or a new one. SystemExit on another's."""
    report: Row = {"rows": [], "complete": False}
    if path.exists():
        found = read(path)
        if found is None:
            raise SystemExit(f"{path} is no result file: remove it, or give another --out")
        report = found
        for name, expected in identity.items():
            if report.get(name) != expected:
                raise SystemExit(f"{path} has {name} {report.get(name)!r}, this is {expected!r}: give another --out")
    report["date"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Journal(path, identity | report, seconds, began=time.monotonic(), alive=alive)


def describe(row: Row) -> str:
    """A row's numbers, for people."""
    if "why" in row:
        return f"{row['verdict']}: {(row['why'].splitlines() or [''])[0]}"
    figures = [(name, value) for name, value in row.items() if isinstance(value, float)]
    return ", ".join(f"{name} {value:.4g}" for name, value in figures[:_SHOWN])


class Keep:
    """What neighbouring rows share, such as a loaded model: made when first asked for, let go before the next is."""

    def __init__(self) -> None:
        self._name: object = None
        self._value: object = None

    def get(self, name: object, make: Callable[[], Kept]) -> Kept:
        """The thing of this name, which is always of the same type."""
        if self._name != name:
            self._name = self._value = None
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self._value = make()
            self._name = name
        return cast("Kept", self._value)
