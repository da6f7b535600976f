"""The first half hour on a card: correctness, then speed, in three calls of under ten minutes, without a network.

    python -m bench.gpu.pack                       # before: wheels and compiled kernels to take along, in build/card
    python -m bench.gpu.first 1 --out DIR          # kernels and engine checked, first load
    python -m bench.gpu.first 2 --out DIR          # decodes, tiles, libraries at the same shapes, launches
    python -m bench.gpu.first 3 --out DIR          # on the mended tree: checks, loads and a start

Needs Python with torch and Triton. Each step of a call (`first_steps`) is a process with a time limit; one that fails
does not end the others. After every step DIR gets at most four files: `run-N.json` (card, versions, command, every
step), `run-N.txt` (the printed table), `run-N.tar.gz` (result files and logs) and `kernels-N.tar.gz` (kernels that had
to be compiled). Copied to --taken, the archives of a call that was cut off let the next one continue after its last
complete row. Exit status: 0 all is well, 1 a step failed or has not run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import TimeoutExpired

from bench.gpu import taken
from bench.gpu.first_steps import CALLS, Step, tiny
from bench.gpu.report import markdown
from bench.lib.host import host
from bench.lib.processes import ROOT, group, last
from bench.lib.results import GOOD, INCOMPLETE, Row, read, save

SOURCES = ("common", "protocol", "inference")
BUDGET = 560.0
"""Seconds of a call: ten minutes end it, and its last archive takes some seconds."""
_LEAST = 15.0
"""Seconds: a step with less would end while it imports torch."""
_GRACE, _PATIENCE = 10.0, 3.0
"""Seconds: from the end of a step's time until it is terminated, and then until it is killed."""
_MOST_KERNELS = 15 << 20
"""Bytes of an archive of kernels."""
_TOOLS = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/*")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("call", type=int, choices=sorted(CALLS), help="which of the three calls")
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the call's files")
    add("--taken", type=Path, default=ROOT / "build" / "card", metavar="DIR", help="what was taken along")
    add("--work", type=Path, default=Path(tempfile.gettempdir()) / "octavo-first", metavar="DIR",
        help="folder with room for 16 GB of a model")  # fmt: skip
    add("--budget", type=float, default=BUDGET, metavar="SECONDS", help="time for all steps (default: %(default)s)")
    add("--only", nargs="+", default=[], metavar="STEP", help="these steps")
    add("--interpret", action="store_true", help="tiny sizes on the CPU, by Triton's interpreter")
    given = parser.parse_args()
    steps = tiny(CALLS[given.call]) if given.interpret else list(CALLS[given.call])
    if unknown := sorted(set(given.only) - {step.name for step in steps}):
        sys.exit(f"no step {', '.join(unknown)} in this call; it has {', '.join(step.name for step in steps)}")
    steps = [step for step in steps if not given.only or step.name in given.only]
    machine = prepare(given.taken.resolve(), given.work.resolve(), interpret=given.interpret)
    sys.exit(run(given.call, steps, machine, given.out.resolve(), given.budget))


@dataclass(frozen=True, slots=True)
class Machine:
    """Folders of a call and the environment of its steps. `brought`: names of the kernels that were taken along."""

    results: Path
    kernels: Path
    large: Path
    env: Mapping[str, str]
    interpret: bool
    brought: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)


def prepare(along: Path, work: Path, *, interpret: bool) -> Machine:
    """Unpack what was taken along. Its absence is noted: the machine may have all packages."""
    results, kernels, site, large = (work / name for name in ("results", "kernels", "site", "large"))
    for folder in (results, kernels, site, large):
        folder.mkdir(parents=True, exist_ok=True)
    notes = [f"wheels unpacked: {', '.join(taken.unpack_wheels(along, site)) or 'none was lacking'}"]
    for archive in sorted(along.glob("kernels*.tar.gz")):
        taken.unpack_kernels(archive, kernels)
    for archive in sorted(along.glob("run-*.tar.gz")):
        taken.unpack_results(archive, results)
    # The server asks for the version of its package, which a clone has not installed.
    (site / "octavo-0.dist-info").mkdir(exist_ok=True)
    (site / "octavo-0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: octavo\nVersion: 0\n")
    packed = read(along / "manifest.json")
    notes.append(f"kernels taken along: {taken.count(kernels)}, compiled with {packed['versions'] if packed else '?'}")
    paths = [*(str(ROOT / name) for name in SOURCES), str(ROOT), str(site), os.environ.get("PYTHONPATH", "")]
    tools = [str(path) for pattern in _TOOLS for path in Path("/").glob(pattern[1:])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    env |= {"TRITON_CACHE_DIR": str(kernels), "PATH": os.pathsep.join([os.environ.get("PATH", ""), *tools])}
    return Machine(results, kernels, large, env, interpret, frozenset(p.name for p in kernels.iterdir()), notes)


def run(call: int, steps: Sequence[Step], machine: Machine, out: Path, budget: float) -> int:
    """Run the steps; write the call's files after each one, and print the table last."""
    end, began = time.monotonic() + budget, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    out.mkdir(parents=True, exist_ok=True)
    command = ["python -m bench.gpu.first", *sys.argv[1:]]
    report: Row = {"call": call, "command": " ".join(command), "date": began, "host": host(), "notes": machine.notes}
    report["steps"] = []
    for note in machine.notes:
        say(note)
    for step in steps:
        row = run_step(step, machine, end - time.monotonic())
        say(f"{step.name}: {row['status']}, {row['seconds']:.0f} s, {row['compiled']} kernels compiled")
        report["steps"].append(row)
        for name in ("card", "versions"):  # as the first step found them
            if name not in report and row.get(name):
                report[name] = row[name]
        table = write(call, report, steps, machine, out)
    say(table)
    return 0 if all(row["status"] in {"ok", "skipped"} for row in report["steps"]) else 1


def run_step(step: Step, machine: Machine, left: float) -> Row:
    """Run one step; what became of it."""
    row: Row = {"name": step.name, "status": "skipped", "seconds": 0.0, "compiled": 0}
    extra: list[str] = []
    if step.after:
        failed = [r["kernel"] for r in rows_of(machine.results / f"{step.after}.json") if r["verdict"] not in GOOD]
        if not failed:
            return row | {"why": f"{step.after} found no fault"}
        extra = ["--only", failed[0]]
    tool = shutil.which(step.under[0], path=machine.env["PATH"]) if step.under else None
    if step.under and tool is None:
        return row | {"why": f"{step.under[0]} is not installed"}
    if left < _LEAST + _GRACE:
        return row | {"status": "no time", "why": f"{left:.0f} s were left"}
    seconds = min(step.limit, left - _GRACE)
    result, log = machine.results / f"{step.name}.json", machine.results / f"{step.name}.log"
    command = [*([tool, *step.under[1:]] if tool else []), sys.executable, "-m", "bench.gpu", *step.arguments, *extra]
    command += ["--out", str(result), "--seconds", f"{seconds - 5:.0f}", "--folder", str(machine.large)]
    command += ["--interpret"] * machine.interpret
    before, begin = taken.count(machine.kernels), time.monotonic()
    with group(command, log, _PATIENCE, env=machine.env) as process:
        try:
            status: int | None = process.wait(timeout=seconds + _GRACE / 2)
        except TimeoutExpired:
            status = None
    row |= {"seconds": round(time.monotonic() - begin, 1), "compiled": taken.count(machine.kernels) - before}
    found, rows = read(result) or {}, rows_of(result)
    bad = [r for r in rows if r.get("verdict") not in GOOD]
    how = {0: "ok", None: "killed at its limit", INCOMPLETE: "not complete"}.get(status, f"exit status {status}")
    how = "no rows" if how == "ok" and not rows else how
    row |= {"status": "failed" if bad else how, "rows": len(rows), "bad": len(bad), "arguments": command[1:]}
    if status not in {0, INCOMPLETE} and not bad:
        row["why"] = last(log, 1)
    return row | {name: found[name] for name in ("card", "versions") if found.get(name)}


def rows_of(result: Path) -> list[Row]:
    """Rows of a result file so far."""
    rows: list[Row] = (read(result) or {}).get("rows", [])
    return rows


def write(call: int, report: Row, steps: Sequence[Step], machine: Machine, out: Path) -> str:
    """Write the call's files; its table."""
    found = {step.name: read(machine.results / f"{step.name}.json") for step in steps}
    table = markdown({name: result for name, result in found.items() if result}, report["steps"])
    save(out / f"run-{call}.json", report)
    (out / f"run-{call}.txt").write_text(table + "\n", encoding="utf-8")
    taken.archive(out / f"run-{call}.tar.gz", machine.results)
    fresh = [path for path in machine.kernels.iterdir() if path.name not in machine.brought]
    if fresh:
        size = sum(file.stat().st_size for path in fresh for file in path.glob("*"))
        if size < 3 * _MOST_KERNELS:  # machine code shrinks to a third
            taken.archive(out / f"kernels-{call}.tar.gz", machine.kernels, [path.name for path in fresh])
    return table


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
