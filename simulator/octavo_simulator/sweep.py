"""Runs of many settings on many workloads. Each result is cached at once, so that an interrupted sweep can resume."""

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
    """One run. Empty `fault` means none, empty `strategy` the default; `seconds` truncates the trace unless 0."""

    workload: str
    family: str
    knobs: Mapping[str, float]
    seed: int = 0
    fault: str = ""
    strategy: str = ""
    seconds: float = 0.0

    @property
    def key(self) -> str:
        """The run's key in the cache."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run: figures of the tuning part, on which settings are chosen, and of the judged part.

    `windows`: of the judged part, about five minutes each: requests, good requests, pod-seconds.
    """

    task: Task
    tuning: Mapping[str, float]
    judged: Mapping[str, float]
    windows: Sequence[tuple[int, int, float]]

    @property
    def name(self) -> str:
        """The scaler and its settings."""
        return f"{self.task.family} {label(self.task.knobs)}"


def scenario(task: Task, folder: Path | None) -> Scenario:
    """The scenario of a task."""
    found = _workload(task.workload, task.seed, folder)
    if task.seconds:
        tuning = task.seconds / 3
        short = trace.cut(found.trace, 0, task.seconds)
        found = replace(found, trace=short, tuning=tuning, grace=min(found.grace, tuning))
    if task.fault:
        found = FAULTS[task.fault][1](found)
    return replace(found, strategy=task.strategy or found.strategy)


def play(task: Task, folder: Path | None) -> Run:
    """Simulate a task."""
    found = scenario(task, folder)
    return simulate(found, BY_NAME[task.family].build(found, task.knobs), task.seed)


def result(task: Task, folder: Path | None) -> Result:
    """Simulate a task and compute its result."""
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
    """Cache of results on disk, one line each. Any change in the code of scalers or router starts a new cache."""

    path: Path
    results: dict[str, Result] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Kept:
        """The cache in `folder`."""
        kept = cls(folder / f"runs-{fingerprint()}.jsonl")
        if kept.path.exists():
            for line in kept.path.read_text().splitlines():
                try:
                    found = json.loads(line)
                except ValueError:  # an incomplete line of an interrupted sweep
                    continue
                one = Result(Task(**found["task"]), found["tuning"], found["judged"], found["windows"])
                kept.results[one.task.key] = one
        return kept

    def add(self, one: Result) -> None:
        """Store a result."""
        self.results[one.task.key] = one
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(one)) + "\n")


def run_all(
    tasks: Iterable[Task], folder: Path | None, kept: Kept, workers: int, say: Callable[[str], None] = print
) -> list[Result]:
    """Results of all tasks in their order; cached tasks are not run again. Prints progress after every ten runs."""
    tasks = list(tasks)
    todo = [task for task in {task.key: task for task in tasks}.values() if task.key not in kept.results]
    if todo:
        say(f"{len(todo)} runs to do, {len({task.key for task in tasks}) - len(todo)} cached")
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
    """Ten hex digits, a hash of the code of policy, gateway, protocol and simulator."""
    digest = hashlib.sha256()
    packages = (octavo_operator.autoscale, octavo_gateway, octavo_simulator, octavo_protocol)
    files = [path for package in packages for path in sorted(Path(package.__path__[0]).rglob("*.py"))]
    for path in (*files, Path(prefill_budget.__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:10]
