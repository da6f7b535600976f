"""Runs of many settings on many workloads, each kept as soon as it is done: an interrupted sweep goes on."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import octavo_gateway
import octavo_operator.autoscale
import octavo_protocol
import octavo_simulator
from octavo_inference.core import prefill_budget
from octavo_simulator import trace
from octavo_simulator.cluster import Run, simulate
from octavo_simulator.families import BY_NAME, label
from octavo_simulator.metrics import attained, figures, seconds_by_window
from octavo_simulator.scenario import Scenario
from octavo_simulator.workloads import FAULTS, WORKLOADS

WINDOW_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Task:
    """One run. `fault` and `strategy` are empty for none and the default; `seconds` cuts the trace, 0 for all of it."""

    workload: str
    family: str
    knobs: Mapping[str, float]
    seed: int = 0
    fault: str = ""
    strategy: str = ""
    seconds: float = 0.0

    @property
    def key(self) -> str:
        """The run's name among the kept ones."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run: figures of the part that settings are chosen on, and of the part that is judged.

    `windows`: of the judged part, about five minutes each: requests, those served as promised, pod seconds.
    """

    task: Task
    tuning: Mapping[str, float]
    judged: Mapping[str, float]
    windows: Sequence[tuple[int, int, float]]

    @property
    def name(self) -> str:
        """Scaler and settings."""
        return f"{self.task.family} {label(self.task.knobs)}"


def scenario(task: Task, folder: Path | None) -> Scenario:
    """What a task runs on."""
    found = _workload(task.workload, task.seed, folder)
    if task.seconds:
        tuning = task.seconds / 3
        short = trace.cut(found.trace, 0, task.seconds)
        found = replace(found, trace=short, tuning=tuning, grace=min(found.grace, tuning))
    if task.fault:
        found = FAULTS[task.fault][1](found)
    return replace(found, strategy=task.strategy or found.strategy)


def play(task: Task, folder: Path | None) -> Run:
    """The run itself."""
    found = scenario(task, folder)
    return simulate(found, BY_NAME[task.family].build(found, task.knobs), task.seed)


def result(task: Task, folder: Path | None) -> Result:
    """Play a task and reduce it to what is kept."""
    run = play(task, folder)
    start, end = run.scenario.tuning, run.scenario.trace.seconds
    count = max(1, int((end - start) // WINDOW_SECONDS))
    edges = [start + (end - start) * i / count for i in range(count + 1)]
    seconds = seconds_by_window(run.members, edges)
    windows = []
    for number, pods in enumerate(seconds):
        jobs = [job for job in run.jobs if edges[number] <= job.arrived < edges[number + 1]]
        windows.append((len(jobs), int(attained(jobs, run.scenario.promise).sum()), pods))
    return Result(task, figures(run, 0.0, start).row(), figures(run, start).row(), windows)


@dataclass(slots=True)
class Kept:
    """Results on disk, one line each, of this very code: a changed line of a scaler or the router begins anew."""

    path: Path
    results: dict[str, Result] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Kept:
        """What was kept in `folder` before."""
        kept = cls(folder / f"runs-{fingerprint()}.jsonl")
        if kept.path.exists():
            for line in kept.path.read_text().splitlines():
                try:
                    found = json.loads(line)
                except ValueError:  # the line that was being written when the sweep was interrupted
                    continue
                one = Result(Task(**found["task"]), found["tuning"], found["judged"], found["windows"])
                kept.results[one.task.key] = one
        return kept

    def add(self, one: Result) -> None:
        """Keep a result."""
        self.results[one.task.key] = one
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(one)) + "\n")


def run_all(
    tasks: Iterable[Task], folder: Path | None, kept: Kept, workers: int, say: Callable[[str], None] = print
) -> list[Result]:
    """Results of all tasks, in their order; those kept before are not run again. One line of progress for each ten."""
    tasks = list(tasks)
    todo = [task for task in {task.key: task for task in tasks}.values() if task.key not in kept.results]
    if todo:
        say(f"{len(todo)} runs to do, {len({task.key for task in tasks}) - len(todo)} kept from before")
    begun = time.monotonic()
    for done, one in enumerate(_each(todo, folder, workers), 1):
        kept.add(one)
        if done % 10 == 0 or done == len(todo):
            left = (time.monotonic() - begun) / done * (len(todo) - done)
            say(f"{done}/{len(todo)} runs, about {left / 60:.0f} min left; last: {one.task.workload}, {one.name}")
            sys.stdout.flush()
    return [kept.results[task.key] for task in tasks]


def _each(tasks: Sequence[Task], folder: Path | None, workers: int) -> Iterator[Result]:
    if workers < 2:
        yield from (result(task, folder) for task in tasks)
        return
    with ProcessPoolExecutor(workers) as pool:
        for future in as_completed([pool.submit(result, task, folder) for task in tasks]):
            yield future.result()


@lru_cache(maxsize=4)
def _workload(name: str, seed: int, folder: Path | None) -> Scenario:
    return WORKLOADS[name](seed, folder)


def fingerprint() -> str:
    """Ten hex digits over the code that decides, routes and simulates."""
    digest = hashlib.sha256()
    packages = (octavo_operator.autoscale, octavo_gateway, octavo_simulator, octavo_protocol)
    files = [path for package in packages for path in sorted(Path(package.__path__[0]).rglob("*.py"))]
    for path in (*files, Path(prefill_budget.__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:10]
