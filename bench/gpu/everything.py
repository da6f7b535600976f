"""All measurements, each in a process of its own with its limit; called again, it goes on where it was.

    DIR/NAME.json    what a job found so far        DIR/NAME.log    what it said
    DIR/all.json     which job ran when, for how long, and how it ended

Jobs stand in the order of their worth. Each gets its limit once before any gets a second turn. One that fails is told
and left; the others go on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LOST, INCOMPLETE = 3, 75
UNTIMED = ("ahead", "check")
"""Commands that go on to their end."""
_TRIES = 2
"""Runs of a job that may end without a new row: then it is left."""
_GRACE, _LEAST = 15.0, 20.0
_FAREWELL = 5.0
"""Seconds: beyond its budget until a process is told to end, worth beginning with, and to end in."""


@dataclass(frozen=True, slots=True)
class Job:
    """A call of this program: `name` of its files, `limit` seconds for a turn."""

    name: str
    arguments: tuple[str, ...]
    limit: float


JOBS = (
    Job("ahead", ("ahead",), 240),
    Job("check-kernels", ("check", "--quick", "--part", "kernels"), 180),
    Job("check-engine", ("check", "--part", "engine"), 180),
    Job("load-qwen3-0.6b", ("load", "--model", "qwen3-0.6b"), 240),
    Job("load-qwen3-14b", ("load", "--model", "qwen3-14b"), 240),
    Job("decode-llama-8b", ("decode", "--model", "llama-8b"), 240),
    Job("start-llama-8b", ("start", "--model", "llama-8b"), 240),
    Job("timeline", ("timeline", "--model", "qwen3-0.6b", "llama-8b"), 180),
    Job("ablation-qwen3-0.6b", ("ablation", "--model", "qwen3-0.6b"), 240),
    Job("load-llama-8b", ("load", "--model", "llama-8b"), 180),
    Job("kernels-llama-8b", ("kernels", "--model", "llama-8b"), 240),
    Job("ttft-llama-8b", ("ttft", "--model", "llama-8b"), 180),
    Job("ablation-llama-8b", ("ablation", "--model", "llama-8b"), 240),
    Job("tiles", ("tiles",), 540),
    Job("kernels-qwen3-14b", ("kernels", "--model", "qwen3-14b"), 240),
    Job("ttft-qwen3-14b", ("ttft", "--model", "qwen3-14b"), 180),
    Job("kernels-qwen3-0.6b", ("kernels", "--model", "qwen3-0.6b"), 240),
    Job("ttft-qwen3-0.6b", ("ttft", "--model", "qwen3-0.6b"), 180),
    Job("decode-qwen3-0.6b", ("decode", "--model", "qwen3-0.6b"), 240),
    Job("decode-qwen3-14b", ("decode", "--model", "qwen3-14b"), 240),
    Job("tiles", ("tiles",), 540),
    Job("peer-qwen3-0.6b", ("peer", "--model", "qwen3-0.6b"), 540),
    Job("peer-qwen3-14b", ("peer", "--model", "qwen3-14b"), 540),
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
            failed = [job.name for job in jobs if not complete(folder, job)]
            say("complete" + (f", but for {', '.join(failed)}: their logs say why" if failed else ""))
            return 1 if failed else 0
        # Those that had fewest turns first; equals stay in the order of their worth.
        job = min(waiting, key=lambda each: sum(turn["job"] == each.name for turn in turns))
        left = end - clock() - _GRACE
        if left < _LEAST:
            say(f"{len(waiting)} jobs wait for the next call: {', '.join(job.name for job in waiting)}")
            return INCOMPLETE
        budget, before = min(job.limit, left), rows(folder, job)
        say(f"{job.name}: up to {budget:.0f} s")
        command = [*job.arguments, *flags, "--out", str(folder / f"{job.name}.json")]
        command += [] if job.arguments[0] in UNTIMED else ["--seconds", f"{budget:.0f}"]
        ended = begin(command, folder / f"{job.name}.log", budget + _GRACE)
        gained = rows(folder, job) - before
        turns.append(
            {"job": job.name, "status": ended.status, "seconds": round(ended.seconds, 1), "rows": gained,
             "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        )  # fmt: skip
        _write(folder / "all.json", turns)
        if archive is not None:
            pack(folder, archive)
        how = {None: "killed at its limit", 0: "complete", LOST: "the GPU was lost", INCOMPLETE: "to be gone on with"}
        say(f"{job.name}: {how.get(ended.status, f'exit status {ended.status}')}, {gained} rows, {ended.seconds:.0f} s")


def over(job: Job, folder: Path, turns: Sequence[dict[str, Any]]) -> bool:
    """Whether a job is complete, or has ended too often without a new row."""
    in_vain = [turn for turn in turns if turn["job"] == job.name and turn["rows"] <= 0]
    return complete(folder, job) or len(in_vain) >= _TRIES


def complete(folder: Path, job: Job) -> bool:
    """By its file."""
    found = read(folder / f"{job.name}.json")
    return found is not None and bool(found.get("complete"))


def rows(folder: Path, job: Job) -> int:
    """How many it has."""
    found = read(folder / f"{job.name}.json") or {}
    return sum(len(found.get(name, ())) for name in ("rows", "kernels", "engine"))


def read(path: Path) -> dict[str, Any] | None:
    """A result file; None where there is none."""
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def run(arguments: list[str], log: Path, limit: float) -> Ended:
    """Run this program once more; what it says goes to the log."""
    began = time.monotonic()
    with log.open("a", encoding="utf-8") as file:
        process = subprocess.Popen([sys.executable, str(HERE), *arguments], stdout=file, stderr=subprocess.STDOUT)
        try:
            status: int | None = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            status = None
            process.terminate()  # so that it ends what it started itself
            try:
                process.wait(timeout=_FAREWELL)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
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
    path = folder / "all.json"
    return json.loads(path.read_text(encoding="utf-8"))["turns"] if path.exists() else []


def _write(path: Path, turns: list[dict[str, Any]]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps({"turns": turns}, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
