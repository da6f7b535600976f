"""Lanes of stages: a lane runs its stages one after the other, lanes run in parallel."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

# With autogroups, Linux schedules sessions by the niceness of their autogroup, and uses a process's own niceness only
# within its session. So both are set.
_YIELDING = '{ echo "$1" > /proc/self/autogroup; } 2>/dev/null; exec nice -n "$1" make --no-print-directory "$0"'


@dataclass(frozen=True, slots=True)
class Lane:
    """Stages that run one after the other; each is a target of the Makefile.

    `niceness` is added to that of the caller. `after`: a stage of another lane that has to end before.
    """

    stages: tuple[str, ...]
    niceness: int = 0
    after: str = ""

    def only(self, chosen: Sequence[str]) -> Lane:
        """The lane with only the chosen stages; `after` is kept only if chosen."""
        kept = tuple(stage for stage in self.stages if stage in chosen)
        return replace(self, stages=kept, after=self.after if self.after in chosen else "")


@dataclass(frozen=True, slots=True)
class Result:
    """A stage that ended after `seconds`; `reports`: the folder of its pytest reports, possibly empty."""

    stage: str
    passed: bool
    seconds: float
    reports: Path


def run(lanes: Sequence[Lane], root: Path, environment: Mapping[str, str], out: TextIO) -> list[Result]:
    """Runs all lanes and returns the results in the order in which the stages ended.

    A failed stage ends its lane, not the others. Each line of output is prefixed with its stage. An interrupt is passed
    on to every stage, and their end is awaited. pytest's reports are in `root`/build/tests/STAGE.
    """
    work = _Work(root, environment, out, [stage for lane in lanes for stage in lane.stages])
    threads = [threading.Thread(target=work.lane, args=(lane,), daemon=True) for lane in lanes]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        work.interrupt()
        raise
    return work.results


class _Work:
    def __init__(self, root: Path, environment: Mapping[str, str], out: TextIO, stages: Sequence[str]) -> None:
        self._root, self._environment, self._out = root, environment, out
        self._reports = root / "build" / "tests"
        self._ended = {stage: threading.Event() for stage in stages}
        self._width = max(map(len, stages), default=0)
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._interrupted = False
        self.results: list[Result] = []

    def lane(self, lane: Lane) -> None:
        """Runs the stages of one lane."""
        if lane.after:
            self._ended[lane.after].wait()
        going_on = True
        for stage in lane.stages:
            going_on = going_on and not self._interrupted and self._stage(stage, lane.niceness)
            self._ended[stage].set()

    def interrupt(self) -> None:
        """Interrupts the running stages with all their children, and waits for their end."""
        self._interrupted = True
        with self._lock:
            running = list(self._running)
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        for process in running:
            process.wait()

    def _stage(self, stage: str, niceness: int) -> bool:
        reports = self._reports / stage
        shutil.rmtree(reports, ignore_errors=True)
        reports.mkdir(parents=True)
        began = time.monotonic()
        self._print(stage, "begins")
        with subprocess.Popen(
            ["sh", "-c", _YIELDING, stage, str(niceness)],
            cwd=self._root,
            env={**self._environment, "OCTAVO_TEST_REPORTS": str(reports)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Its own process group, so that an interrupt reaches it and its children exactly once.
            start_new_session=True,
        ) as process:
            with self._lock:
                self._running.add(process)
            for line in process.stdout or ():
                self._print(stage, line.rstrip())
        passed = process.returncode == 0
        with self._lock:
            self._running.discard(process)
            self.results.append(Result(stage, passed, time.monotonic() - began, reports))
        self._print(stage, "passed" if passed else f"FAILED: make {stage} exited with {process.returncode}")
        return passed

    def _print(self, stage: str, line: str) -> None:
        with self._lock:
            print(f"{stage:<{self._width}} | {line}", file=self._out, flush=True)
