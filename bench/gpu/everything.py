"""All measurements, each in a process of its own with its limit; called again, it goes on where it was.

    DIR/NAME.json    what a job found so far        DIR/NAME.log    what it said
    DIR/all.json     which job ran when, for how long, and how it ended

Jobs stand in the order of their worth. Each gets its limit once before any gets a second turn; a turn that the end of a
call cut short counts for none. One that fails is told and left; the others go on.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from files import INCOMPLETE, LOST, read, save
from processes import group

HERE = Path(__file__).resolve().parent
UNTIMED = ("ahead", "check")
"""Commands that go on to their end."""
_TRIES = 2
"""Runs of a job that may end without a new row: then it is left."""
_GRACE, _FAREWELL, _REPORT = 15.0, 8.0, 15.0
"""Seconds: beyond its budget until a process is told to end, to end in, and for the report at the end of a call."""
_LEAST = 90.0
"""Seconds: with less a turn would end while its model is loaded."""
SHORTEST = _LEAST + _GRACE + _FAREWELL + _REPORT
"""Seconds that a call needs to begin anything."""
_ROUNDING = 1.0
GOOD = frozenset({"ok", "refused", "compiled"})
"""Verdicts of rows that found nothing wrong."""


@dataclass(frozen=True, slots=True)
class Job:
    """A call of this program: `name` of its files, `limit` seconds for a turn."""

    name: str
    arguments: tuple[str, ...]
    limit: float


JOBS = (
    Job("ahead", ("ahead",), 120),
    Job("check-kernels", ("check", "--quick", "--part", "kernels"), 120),
    Job("load-qwen3-0.6b", ("load", "--model", "qwen3-0.6b"), 240),
    Job("check-engine", ("check", "--part", "engine"), 120),
    Job("load-qwen3-14b", ("load", "--model", "qwen3-14b"), 240),
    Job("decode-llama-8b", ("decode", "--model", "llama-8b"), 240),
    Job("start-llama-8b", ("start", "--model", "llama-8b"), 240),
    Job("load-llama-8b", ("load", "--model", "llama-8b"), 180),
    Job("timeline", ("timeline", "--model", "qwen3-0.6b", "llama-8b"), 180),
    Job("ablation-qwen3-0.6b", ("ablation", "--model", "qwen3-0.6b"), 240),
    Job("kernels-llama-8b", ("kernels", "--model", "llama-8b"), 240),
    Job("ttft-llama-8b", ("ttft", "--model", "llama-8b"), 180),
    Job("ablation-llama-8b", ("ablation", "--model", "llama-8b"), 240),
    Job("tiles", ("tiles",), 480),
    Job("kernels-qwen3-14b", ("kernels", "--model", "qwen3-14b"), 240),
    Job("ttft-qwen3-14b", ("ttft", "--model", "qwen3-14b"), 180),
    Job("kernels-qwen3-0.6b", ("kernels", "--model", "qwen3-0.6b"), 240),
    Job("ttft-qwen3-0.6b", ("ttft", "--model", "qwen3-0.6b"), 180),
    Job("decode-qwen3-0.6b", ("decode", "--model", "qwen3-0.6b"), 240),
    Job("decode-qwen3-14b", ("decode", "--model", "qwen3-14b"), 240),
    Job("peer-qwen3-0.6b", ("peer", "--model", "qwen3-0.6b"), 480),
    Job("peer-qwen3-14b", ("peer", "--model", "qwen3-14b"), 480),
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a turn of a job ended: its exit status, None when it was killed at its limit."""

    status: int | None
    seconds: float


Start = Callable[[list[str], Path, float], Ended]


def run_all(
    folder: Path, seconds: float, archive: Path | None, flags: Sequence[str], say: Callable[[str], None],
    jobs: Sequence[Job] = JOBS, start: Start | None = None, clock: Callable[[], float] = time.monotonic,
) -> int:  # fmt: skip
    """Exit status: 0 all is complete, 1 all is over and something failed, 75 there is more to do."""
    end, begin = clock() + seconds, start or run
    folder.mkdir(parents=True, exist_ok=True)
    turns = _turns(folder)
    while True:
        waiting = [job for job in jobs if not over(job, folder, turns)]
        if not waiting:
            failed = [f"{job.name} ({why})" for job in jobs if (why := wrong(folder, job))]
            say("complete" + (f", but for {', '.join(failed)}: files and logs say why" if failed else ""))
            return 1 if failed else 0
        # Those that had fewest turns first; equals stay in the order of their worth.
        job = min(waiting, key=lambda each: sum(turn["job"] == each.name and counts(turn) for turn in turns))
        left = end - clock() - _GRACE - _FAREWELL - _REPORT
        if left < _LEAST:
            say(f"{len(waiting)} jobs wait for the next call: {', '.join(job.name for job in waiting)}")
            return INCOMPLETE
        budget, before = min(job.limit, left), rows(folder, job)
        say(f"{job.name}: up to {budget:.0f} s")
        command = [*job.arguments, *flags, "--out", str(folder / f"{job.name}.json")]
        command += [] if job.arguments[0] in UNTIMED else ["--seconds", f"{budget:.0f}"]
        ended = begin(command, folder / f"{job.name}.log", budget + _GRACE)
        gained = rows(folder, job) - before
        # A limit that no call of this length has room for is cut to what it has.
        whole = budget >= min(job.limit, seconds - SHORTEST + _LEAST) - _ROUNDING
        turns.append(
            {"job": job.name, "status": ended.status, "budget": round(budget, 1), "whole": whole,
             "seconds": round(ended.seconds, 1), "rows": gained,
             "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        )  # fmt: skip
        save(folder / "all.json", {"turns": turns})
        if archive is not None:
            pack(folder, archive)
        how = {None: "killed at its limit", 0: "complete", LOST: "the GPU was lost", INCOMPLETE: "to be gone on with"}
        say(f"{job.name}: {how.get(ended.status, f'exit status {ended.status}')}, {gained} rows, {ended.seconds:.0f} s")


def counts(turn: dict[str, Any]) -> bool:
    """Whether a turn was one: it had the job's whole limit, or ended for another reason than time."""
    return bool(turn["whole"]) or turn["status"] not in {None, INCOMPLETE}


def over(job: Job, folder: Path, turns: Sequence[dict[str, Any]]) -> bool:
    """Whether a job is complete, or has ended too often without a new row."""
    in_vain = [turn for turn in turns if turn["job"] == job.name and turn["rows"] <= 0 and counts(turn)]
    return complete(folder, job) or len(in_vain) >= _TRIES


def complete(folder: Path, job: Job) -> bool:
    """By its file."""
    found = read(folder / f"{job.name}.json")
    return found is not None and bool(found.get("complete"))


def wrong(folder: Path, job: Job) -> str:
    """What a person must look at in a job that is over; nothing where all is well."""
    bad = sum(row.get("verdict") not in GOOD for row in _rows(folder, job))
    return ", ".join(["not complete"] * (not complete(folder, job)) + [f"{bad} rows failed"] * (bad > 0))


def rows(folder: Path, job: Job) -> int:
    """How many it has; one that was tried again counts twice, so that a turn that did no more was not in vain."""
    return sum(row.get("tries", 1) for row in _rows(folder, job))


def _rows(folder: Path, job: Job) -> list[dict[str, Any]]:
    found = read(folder / f"{job.name}.json") or {}
    return [row for name in ("rows", "kernels", "engine") for row in found.get(name, ())]


def run(arguments: list[str], log: Path, limit: float) -> Ended:
    """Run this program once more; what it says goes to the log."""
    began = time.monotonic()
    with group([sys.executable, str(HERE), *arguments], log, _FAREWELL) as process:
        try:
            status: int | None = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            status = None
    return Ended(status, time.monotonic() - began)


def pack(folder: Path, archive: Path) -> None:
    """The folder in one file, replaced whole."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_name(f".{archive.name}.partial")
    with tarfile.open(partial, "w:gz") as tar:
        for path in sorted(folder.rglob("*")):
            if path.suffix in {".json", ".log", ".md", ".svg"}:
                tar.add(path, arcname=Path(folder.name) / path.relative_to(folder))
    partial.replace(archive)


def _turns(folder: Path) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = (read(folder / "all.json") or {}).get("turns", [])
    return turns
