"""`python -m octavo_simulator.compare`: runs every scaler on every workload; tables, JSON, plots (`make simulate`)."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from octavo_simulator import plots, report
from octavo_simulator.families import BY_NAME, FAMILIES, WITHOUT, Knobs, label
from octavo_simulator.fronts import Interval, paired
from octavo_simulator.sweep import Kept, Result, Task, play, run_all, scenario
from octavo_simulator.tables import table
from octavo_simulator.workloads import FAULTS, JUDGED, RECORDED, NoTracesError

Figures = dict[str, float]
BEST = """The result without tuning for each load: of each scaler the cheapest setting that keeps 99 % on most
workloads, picked with all results known. Cells: attainment · GPU-hours."""
BEFOREHAND = """The same, picked on the first 20 minutes only."""
HARD = """The hardest comparison: Octavo has one setting, the baselines are tuned for each workload."""
SEEDS = """Octavo's one setting (chosen beforehand) and the best-tuned baseline on the same seeds, with 95 % intervals.
A seed generates *prefixes*, *reasoning* and *clients*. The other three are recorded; there a seed changes only starts,
noise and ties, and three seeds are enough."""
PARTS = """The operator's own decisions with a part of their demand removed from outside
(`simulator/octavo_simulator/controllers/ablation.py`). Cells: attainment · GPU-hours."""
BEGIN, END = "<!-- results: written by make simulate -->", "<!-- end of results -->"
STRATEGIES = ("RoundRobin", "LeastLoad", "Session", "PrefixAware")
# Fixed replicas for the comparison of routers, so that only the router differs.
ROUTED_REPLICAS = (8, 10)
QUICK_SECONDS = 300.0
# Recorded traces need fewer seeds, which change only starts, noise and ties.
RECORDED_SEEDS = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    given = _parser().parse_args(argv)
    names = [name for name in JUDGED if not given.only or name in given.only]
    names = [name for name in names if _available(name, given)]
    kept = Kept.of(given.cache)
    grid = [
        Task(name, family.name, knobs, seconds=_seconds(given))
        for name in names
        for family in FAMILIES
        for knobs in (family.grid[:2] if given.quick else family.grid)
    ]
    found = run_all(grid, given.traces, kept, given.workers, _say)
    text, data = _report(given, kept, names, found)
    for path, content in ((given.out / "simulate.md", text), (given.out / "simulate.json", _lines(data))):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    if given.docs:
        _into(given.docs, text)
    _say(report.verdict(report.lines(found, names)))
    _say(report.for_all(report.singles(found, names, "judged")))
    return 0


def _report(
    given: argparse.Namespace, kept: Kept, names: Sequence[str], found: Sequence[Result]
) -> tuple[str, dict[str, object]]:
    setting = report.chosen(found, report.OURS, names)
    ours = next(knobs for knobs in BY_NAME[report.OURS].grid if label(knobs) == setting)
    lines = report.lines(found, names)
    rows, more = _seeds(given, kept, names, found, ours)
    faults, zero, routed = (
        _faults(given, kept, names, found, ours),
        _zero(given, kept, ours),
        _routers(given, kept, names),
    )
    best, tuned = (report.singles(found, names, part) for part in ("judged", "tuning"))
    parts = [
        report.verdict(lines),
        report.for_all(best),
        f"### The workloads\n\n{report.workloads(scenario(Task(n, report.OURS, ours), given.traces) for n in names)}",
        *(
            f"### Tuned for each workload: GPU-hours at {level:.0%} attainment\n\n{report.costs(lines, level)}"
            for level in report.LEVELS[::-1]
        ),
        f"### One setting for all workloads: each scaler's best\n\n{BEST}\n\n{report.one_setting(best)}",
        f"### One setting for all workloads: chosen beforehand\n\n{BEFOREHAND}\n\n{report.one_setting(tuned)}",
        f"### One setting of Octavo against baselines tuned for each workload\n\n{HARD}\n\n{report.hard(found, names)}",
        f"### Over seeds\n\n{SEEDS}\n\n{report.intervals(rows)}",
        f"### Octavo's figures\n\n{report.details(_of(found, names, setting), 'workload')}",
    ]
    if faults:
        parts.append(f"### When things go wrong\n\n{report.details(faults, 'fault')}")
    parts.append(f"### To zero and back\n\n{report.details(zero, 'scaler')}")
    parts.append(f"### Without its parts\n\n{PARTS}\n\n{_without(given, kept, names, ours)}")
    if routed:
        parts.append(f"### Routers\n\nA fixed number of replicas on `prefixes`.\n\n{report.details(routed, 'router')}")
    _plots(given, names, found, ours)
    data: dict[str, object] = {
        "setting": setting,
        "lines": [asdict(line) for line in lines],
        "one_setting": [asdict(one) for one in best],
        "seeds": [
            {"workload": n, "ours": o, "theirs": t, "seeds": s, "cost": asdict(c), "attainment": asdict(a)}
            for n, o, t, s, c, a in rows
        ],
        "results": [
            {"name": one.name, **asdict(one.task), "tuning": _short(one.tuning), "judged": _rounded(one.judged)}
            for one in (*found, *more)
        ],
    }
    return "\n\n".join(parts), data


def _short(figures: Mapping[str, float]) -> Figures:
    """The figures by which settings are chosen."""
    return _rounded({name: figures[name] for name in ("attainment", "gpu_hours") if name in figures})


def _rounded(figures: Mapping[str, float]) -> Figures:
    return {name: float(f"{value:.5g}") for name, value in figures.items()}


def _seeds(
    given: argparse.Namespace, kept: Kept, names: Sequence[str], found: Sequence[Result], ours: Knobs
) -> tuple[list[tuple[str, str, str, int, Interval, Interval]], list[Result]]:
    """Octavo's one setting and the best-tuned baseline of each workload, over several seeds."""
    rows, more = [], []
    for name in names:
        point = next(p for p in report.points(found, name, report.OURS) if p.name == label(ours))
        family, setting = report.rival(found, name, point.attainment)
        theirs = next(knobs for knobs in BY_NAME[family].grid if label(knobs) == setting)
        seconds = _seconds(given)
        seeds = min(given.seeds, RECORDED_SEEDS) if name in RECORDED else given.seeds
        tasks = [Task(name, report.OURS, ours, seed, seconds=seconds) for seed in range(seeds)]
        tasks += [Task(name, family, theirs, seed, seconds=seconds) for seed in range(seeds)]
        results = run_all(tasks, given.traces, kept, given.workers, _say)
        more += results
        windows = [one.windows for one in results]
        cost, attained = paired(windows[:seeds], windows[seeds:])
        rows.append((name, label(ours), f"{BY_NAME[family].title}, {setting}", seeds, cost, attained))
    return rows, more


def _faults(
    given: argparse.Namespace, kept: Kept, names: Sequence[str], found: Sequence[Result], ours: Knobs
) -> list[tuple[str, Figures]]:
    """Octavo and the best-tuned baseline of the workload, with and without each fault."""
    shown = []
    where = {"": "clients", **{fault: name for fault, (name, _) in FAULTS.items()}}
    picked = [(fault, name) for fault, name in where.items() if name in names]
    for fault, name in picked[:2] if given.quick else picked:
        point = next(p for p in report.points(found, name, report.OURS) if p.name == label(ours))
        family, setting = report.rival(found, name, point.attainment)
        theirs = next(knobs for knobs in BY_NAME[family].grid if label(knobs) == setting)
        seconds = _seconds(given)
        tasks = [Task(name, report.OURS, ours, fault=fault, seconds=seconds)]
        tasks.append(Task(name, family, theirs, fault=fault, seconds=seconds))
        results = run_all(tasks, given.traces, kept, given.workers, _say)
        shown += [(f"{fault or 'none'}: {one.name}", dict(one.judged)) for one in results]
    return shown


def _without(given: argparse.Namespace, kept: Kept, names: Sequence[str], ours: Knobs) -> str:
    """Ablation table: Octavo's one setting without each part of its policy; attainment and GPU-hours."""
    parts = {"all of it": report.OURS, **{family.title: family.name for family in WITHOUT.values()}}
    tasks = [Task(name, family, ours, seconds=_seconds(given)) for family in parts.values() for name in names]
    results = iter(run_all(tasks, given.traces, kept, given.workers, _say))
    rows = []
    for title in parts:
        figures = [next(results).judged for _ in names]
        rows.append([title, *(f"{one.get('attainment', 0):.1%} · {one['gpu_hours']:.2f}" for one in figures)])
    return table(["", *names], rows)


def _zero(given: argparse.Namespace, kept: Kept, ours: Knobs) -> list[tuple[str, Figures]]:
    picked: list[tuple[str, Knobs]] = [
        (report.OURS, ours),
        ("kpa", {"target": 8}),
        ("kpa", {"target": 16}),
        ("static", {"replicas": 2}),
        ("static", {"replicas": 4}),
    ]
    # The first requests come after five to ten minutes.
    tasks = [Task("on-off", family, knobs, seconds=4 * _seconds(given)) for family, knobs in picked]
    return [(one.name, dict(one.judged)) for one in run_all(tasks, given.traces, kept, given.workers, _say)]


def _routers(given: argparse.Namespace, kept: Kept, names: Sequence[str]) -> list[tuple[str, Figures]]:
    if "prefixes" not in names:
        return []
    tasks = [
        Task("prefixes", "static", {"replicas": replicas}, strategy=strategy, seconds=_seconds(given))
        for replicas in ROUTED_REPLICAS
        for strategy in STRATEGIES
    ]
    results = run_all(tasks, given.traces, kept, given.workers, _say)
    return [(f"{one.task.strategy}, {one.task.knobs['replicas']:g} replicas", dict(one.judged)) for one in results]


def _plots(given: argparse.Namespace, names: Sequence[str], found: Sequence[Result], ours: Knobs) -> None:
    given.plots.mkdir(parents=True, exist_ok=True)
    for name in names:
        families = {family.title: report.points(found, name, family.name) for family in FAMILIES}
        plots.fronts(families, report.LEVELS[-1], given.plots / f"front-{name}.svg")
    for name in names[-1:]:
        plots.timeline(
            play(Task(name, report.OURS, ours, seconds=_seconds(given)), given.traces), given.plots / "run.svg"
        )


def _of(found: Sequence[Result], names: Sequence[str], setting: str) -> list[tuple[str, Figures]]:
    return [
        (one.task.workload, dict(one.judged))
        for name in names
        for one in found
        if (one.task.workload, one.task.family, label(one.task.knobs)) == (name, report.OURS, setting)
    ]


def _available(name: str, given: argparse.Namespace) -> bool:
    try:
        scenario(Task(name, report.OURS, {"share": 1.0}), given.traces)
    except NoTracesError as error:
        _say(f"SKIPPED: {name}: {error}")
        return False
    return True


def _lines(data: Mapping[str, object]) -> str:
    """JSON with one line per result, for small diffs."""
    results = data["results"]
    rows = ",\n".join(json.dumps(one) for one in results) if isinstance(results, list) else ""
    rest = json.dumps({name: value for name, value in data.items() if name != "results"})
    return f'{rest[:-1]}, "results": [\n{rows}\n]}}'


def _into(path: Path, text: str) -> None:
    """Replace the text between the markers of a page with the tables."""
    page = path.read_text()
    before, rest = page.split(BEGIN)
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")


def _seconds(given: argparse.Namespace) -> float:
    return QUICK_SECONDS if given.quick else 0.0


def _say(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="octavo_simulator.compare", description=__doc__)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "octavo" / "simulate"
    traces = os.environ.get("OCTAVO_TRACES", "../shared/traces")
    add = parser.add_argument
    add(
        "--traces",
        type=Path,
        default=Path(traces),
        help="folder of public traces (default: OCTAVO_TRACES, %(default)s)",
    )
    add(
        "--out",
        type=Path,
        default=Path("bench/results"),
        help="output folder for tables and JSON (default %(default)s)",
    )
    add("--plots", type=Path, default=Path("docs/evidence/simulation"), help="folder of plots (default %(default)s)")
    add("--docs", type=Path, help="page in which to replace the results")
    add("--cache", type=Path, default=cache, help="folder of cached finished runs (default %(default)s)")
    add("--only", nargs="*", choices=list(JUDGED), help="workloads (default: all)")
    add("--seeds", type=int, default=10, help="number of seeds of the paired comparison (default %(default)s)")
    add(
        "--workers",
        type=int,
        default=max(1, min(os.cpu_count() or 1, 16)),
        help="worker processes (default: one per core, at most 16)",
    )
    add("--quick", action="store_true", help="test run: five minutes of each workload, two settings of each scaler")
    return parser


if __name__ == "__main__":
    sys.exit(main())
