"""Runs all measurements, each in a process of its own with a time limit; called again, it continues.

    DIR/NAME.json    results of a job so far        DIR/NAME.log    its output

Jobs are in order of importance: correctness, then the loads, then their analysis. The first ten take half an hour at
most.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.lib.processes import group, last
from bench.lib.results import GOOD, INCOMPLETE, LOST, Row, Say, read

UNTIMED = "precompile"
"""The command without a time budget."""
_GRACE, _FAREWELL = 15.0, 8.0
"""Seconds: from the end of its budget until a process is terminated, and then until it is killed."""
LEAST = 60.0
"""Seconds: a job with less would end while its model loads."""


@dataclass(frozen=True, slots=True)
class Job:
    """A call of this program: `name` of its files, `limit` in seconds per turn."""

    name: str
    arguments: tuple[str, ...]
    limit: float


JOBS = (
    Job("precompile", ("precompile",), 120),
    Job("check-kernels", ("check", "--quick", "--part", "kernels"), 150),
    Job("check-engine", ("check", "--part", "engine"), 150),
    Job("load-qwen3-0.6b", ("load", "--model", "qwen3-0.6b"), 150),
    Job("timeline", ("timeline", "--model", "qwen3-0.6b", "llama-8b"), 180),
    Job("decode-llama-8b", ("decode", "--model", "llama-8b"), 240),
    Job("load-llama-8b", ("load", "--model", "llama-8b"), 180),
    Job("load-qwen3-14b", ("load", "--model", "qwen3-14b"), 180),
    Job("tiles-attention", ("tiles", "--only", "attention"), 210),
    Job("start-llama-8b", ("start", "--model", "llama-8b"), 240),
    Job("ablation-qwen3-0.6b", ("ablation", "--model", "qwen3-0.6b"), 240),
    Job("kernels-llama-8b", ("kernels", "--model", "llama-8b"), 240),
    Job("ttft-llama-8b", ("ttft", "--model", "llama-8b"), 180),
    Job("ablation-llama-8b", ("ablation", "--model", "llama-8b"), 240),
    Job("tiles", ("tiles",), 480),
    *(
        Job(f"{part}-{model}", (part, "--model", model), limit)
        for part, limit in (("kernels", 240), ("ttft", 180), ("decode", 240), ("peer", 480))
        for model in ("qwen3-14b", "qwen3-0.6b")
    ),
)
Start = Callable[[list[str], Path, float], int | None]
"""Maps arguments, log and time limit of a job to its exit status: None when it was killed at its limit."""


def run_all(
    folder: Path, seconds: float, large: Path, say: Say, *, interpret: bool = False, jobs: Sequence[Job] = JOBS,
    start: Start | None = None, clock: Callable[[], float] = time.monotonic,
) -> int:  # fmt: skip
    """Run the jobs. Exit status: 0 all is complete and good, 1 something failed, 75 work is left.

    `large` is a folder for the models' files.
    """
    end = clock() + seconds
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [job for job in jobs if not (interpret and job.name == "precompile")]
    before = sum(len(rows(folder, job)) for job in jobs)
    # Jobs without a turn so far come first; the others are in order of importance.
    waiting = [job for job in jobs if not complete(folder, job)]
    waiting.sort(key=lambda job: (folder / f"{job.name}.log").exists())
    cut = False
    for number, job in enumerate(waiting):
        left = end - clock() - _GRACE - _FAREWELL
        if left < min(job.limit, LEAST):
            rest = [each.name for each in waiting[number:]]
            say(f"{len(rest)} jobs wait for the next call: {', '.join(rest)}")
            return INCOMPLETE
        budget, log = min(job.limit, left), folder / f"{job.name}.log"
        command = [*job.arguments, "--out", str(folder / f"{job.name}.json")]
        if job.arguments[0] != UNTIMED:
            command += ["--seconds", f"{budget:.0f}", "--folder", str(large), *["--interpret"] * interpret]
        say(f"{job.name}: up to {budget:.0f} s")
        status = (start or run)(command, log, budget + _GRACE)
        words = last(log, 1)
        if number and budget < job.limit and not complete(folder, job):
            cut = True
            log.replace(log.with_suffix(".cut"))  # this call's deadline cut the turn short: the job keeps its place
        how = {None: "killed at its limit", 0: "complete", LOST: "the GPU was lost", INCOMPLETE: "to be gone on with"}
        said = how.get(status) or f"exit status {status}: {words}"
        say(f"{job.name}: {said}, {len(rows(folder, job))} rows")
    bad = [f"{job.name} ({why})" for job in jobs if (why := wrong(folder, job))]
    say("all jobs had their turn" + (f"; to be looked at: {', '.join(bad)}" if bad else ""))
    gained = sum(len(rows(folder, job)) for job in jobs) > before
    if cut or (gained and not all(complete(folder, job) for job in jobs)):
        return INCOMPLETE
    return 1 if bad else 0


def complete(folder: Path, job: Job) -> bool:
    """Return True if the job's file is complete."""
    return bool((read(folder / f"{job.name}.json") or {}).get("complete"))


def wrong(folder: Path, job: Job) -> str:
    """Problems of a job that had its turn; empty without problems."""
    bad = sum(row.get("verdict") not in GOOD for row in rows(folder, job))
    return ", ".join(["not complete"] * (not complete(folder, job)) + [f"{bad} rows failed"] * (bad > 0))


def rows(folder: Path, job: Job) -> list[Row]:
    """Rows of a job so far."""
    found: list[Row] = (read(folder / f"{job.name}.json") or {}).get("rows", [])
    return found


def run(arguments: list[str], log: Path, limit: float) -> int | None:
    """Run this program in a child process; its output goes to the log."""
    with group([sys.executable, "-m", "bench.gpu", *arguments], log, _FAREWELL) as process:
        try:
            return process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            return None
