"""Compares Octavo with its peers on this machine: python -m bench.cpu [--rounds 3] [--only NAME ...] [--resume FILE].

Systems are processes that load once and are idle while another runs; they take turns within a round. A ratio is taken
within its round, because the machine's own speed drifts, and the median of the rounds counts. Records are written after
every turn, and --resume continues them. The table goes to standard output and, with a plot, next to the file.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.cpu.experiments import Experiment, by_variant, experiments
from bench.cpu.floors import limits
from bench.cpu.report import bandwidths, machine, plot, profile_table, remarks, results, table
from bench.cpu.runner import RunnerError, Runners
from bench.cpu.systems import System, systems
from bench.lib.host import available_memory, host, new_report, result_file
from bench.lib.loads import SEED
from bench.lib.processes import CACHE
from bench.lib.results import read, save
from octavo_inference.backends.cpu.native.library import available, load

Record = dict[str, Any]


def main() -> None:
    given = arguments()
    chosen = choose(experiments(host()["isa"], given.scale), given)
    if given.list:
        print("\n".join(f"{e.name:11} {e.seconds:4} s a round: {', '.join(e.systems)}" for e in chosen))
        return
    sizes = {"threads": given.threads, "scale": given.scale, "seed": SEED}
    report = resumed(given) if given.resume else new_report(**sizes, systems={}, commands={}, left_out={}, records=[])
    output = given.resume or given.output or result_file("cpu")
    variants = kernel_variants() if given.variants else ()
    all_systems = systems(report["threads"], given.kv_memory, eager=given.eager, variants=variants, scale=given.scale)
    unwanted = [*given.without, *(("vllm", "llama") if given.alone else ())]
    wanted = sorted({name for e in chosen for name in e.systems if not any(word in name for word in unwanted)})
    able = {name: prepared(all_systems[name]) for name in wanted}
    report["left_out"] = {name: system.missing for name, system in able.items() if system.missing}
    for name, why in report["left_out"].items():
        print(f"{name} is left out: {why}\n", flush=True)
    rounds = {e.name: 1 if e.once and e.name not in given.only else given.rounds for e in chosen}
    seconds = sum(e.seconds * rounds[e.name] for e in chosen) / given.scale
    print(f"{len(chosen)} experiments: about {seconds / 60 + 4:.0f} minutes on two quiet cores", flush=True)
    for _, group in itertools.groupby(chosen, key=lambda e: e.model):
        measure(list(group), rounds, able, report, output)
    report["host"]["limits"] = {
        model or "built-in": limits(report["records"], model) for model in {e.model: 0 for e in chosen}
    }
    save(output, report)
    publish(chosen, report, output, "cpu_seconds" if given.cpu_time else "seconds")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rounds", type=int, default=3)
    add(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="experiments to run, such as single or '*-1b' (see --list)",
    )
    add("--variants", action="store_true", help="Octavo only: each variant of the kernels that this machine can run")
    add("--without", nargs="+", default=[], metavar="WORD", help="leave out systems with this in their names")
    add("--list", action="store_true", help="name the experiments and leave")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each system")
    add("--kv-memory", default="1Gi", metavar="SIZE", help="of each of Octavo's engines")
    add("--alone", action="store_true", help="Octavo only: to see where it stands, not a comparison")
    add("--eager", action="store_true", help="vLLM without torch.compile: starts sooner, runs slower")
    add("--scale", type=int, default=1, help="divide all sizes by this, for a quick look")
    add("--cpu-time", action="store_true", help="rates per CPU second: for a machine that is busy")
    add("--output", type=Path, help="result file (default: bench/results/cpu-<date>.json)")
    add("--resume", type=Path, metavar="FILE", help="go on with an earlier result file")
    return parser.parse_args()


def resumed(given: argparse.Namespace) -> dict[str, Any]:
    report = read(given.resume)
    if report is None:
        sys.exit(f"--resume: {given.resume} is no result file")
    if {k: v for k, v in report["host"].items() if k != "limits"} != host() or report["scale"] != given.scale:
        sys.exit(f"{given.resume} is of another machine or scale: its rounds cannot be put beside new ones")
    return report


def choose(everything: Sequence[Experiment], given: argparse.Namespace) -> list[Experiment]:
    """The experiments to run, with the machine's limits for each model; by default those of the built-in model."""
    names = [e.name for e in everything]
    if unknown := [pattern for pattern in given.only if not fnmatch.filter(names, pattern)]:
        sys.exit(f"--only: there is no experiment {unknown[0]!r}; there are {', '.join(names)}")
    wanted = {name for pattern in given.only for name in fnmatch.filter(names, pattern)}
    if given.list:
        return [e for e in everything if e.name in (wanted or names)]
    chosen = [e for e in everything if (e.name in wanted if wanted else not e.model)]
    if given.variants:
        variants = kernel_variants()
        if len(variants) < 2:
            sys.exit("--variants: this machine and build can run one variant only, there is nothing to compare")
        try:
            chosen = [by_variant(e, variants) for e in chosen if e.command != "limits"]
        except ValueError as error:
            sys.exit(f"--variants: {error}")
    measured = {e.model for e in chosen}
    limiting = [e for e in everything if e.command == "limits" and e.model in measured and e not in chosen]
    # Together with the loads of its model, so that they are measured in turn.
    order = list(dict.fromkeys(e.model for e in everything))
    return sorted([*limiting, *chosen], key=lambda e: order.index(e.model))


def kernel_variants() -> tuple[str, ...]:
    """The variants of the kernels that this machine can run: the one that it uses first, without the portable one."""
    best = load().variant
    return best, *(name for name in available() if name not in {best, "portable"})


def prepared(system: System) -> System:
    """Write the files of a system that can run; with the reason in `missing` when that fails."""
    if system.missing or not system.prepare:
        return system
    try:
        system.prepare()
    except RuntimeError as error:
        return replace(system, missing=str(error))
    return system


def measure(
    chosen: Sequence[Experiment],
    rounds: dict[str, int],
    wanted: dict[str, System],
    report: dict[str, Any],
    output: Path,
) -> None:
    """Run the missing measurements; the report is written after every turn."""
    CACHE.mkdir(parents=True, exist_ok=True)
    records: list[Record] = report["records"]
    warm: set[str] = set()
    commands = {name: system.command for name, system in wanted.items()}
    with Runners(commands, CACHE, {name: system.environment for name, system in wanted.items()}) as running:
        for number, experiment in itertools.product(range(1, max(rounds.values()) + 1), chosen):
            able = [name for name in experiment.systems if name in wanted and not wanted[name].missing]
            here = [r for r in records if (r["experiment"], r["round"]) == (experiment.name, number)]
            if number > rounds[experiment.name] or {r["system"] for r in here if "error" not in r} >= set(able):
                continue
            # Keep only complete rounds: half of one was measured at another time of the day.
            records[:] = [r for r in records if r not in here]
            for name in able:
                record = {"experiment": experiment.name, "round": number, "system": name}
                records.append(record | turn(running, name, wanted[name], experiment.command, warm))
                say(records[-1])
                report["systems"] |= running.ready
                report["commands"][name] = [Path(part).name for part in wanted[name].command]
                save(output, report)


def turn(running: Runners, name: str, system: System, command: str, warm: set[str]) -> dict[str, Any]:
    """Run one measurement; its result, or the reason for the failure."""
    free = 0 if running.running(name) else available_memory()
    if not running.running(name) and free < system.memory:
        return {"error": f"{name} needs {system.memory / 1e9:.1f} GB of memory, {free / 1e9:.1f} are available"}
    try:
        runner = running.get(name)
        for first in () if name in warm else system.warm:
            runner.run(first)
        warm.add(name)
        before = os.getloadavg()[0]
        return {"load_average_before": round(before, 2)} | runner.run(command)
    except RunnerError as error:
        return {"error": str(error)}


def say(record: Record) -> None:
    shown = {k: v for k, v in record.items() if isinstance(v, int | float | str) and k not in {"experiment", "system"}}
    if "tokens" in record:
        shown["rate"] = round(record["tokens"] / record["seconds"], 1)
    print(
        f"{record['experiment']:11} {record['system']:20} " + " ".join(f"{k}={v}" for k, v in shown.items()), flush=True
    )


def publish(chosen: Sequence[Experiment], report: dict[str, Any], output: Path, unit: str) -> None:
    """Write table and plot next to the result file."""
    records, known = report["records"], report["systems"]
    found = results(chosen, records, unit, known, report.get("left_out"))
    h, threads, scale = report["host"], report["threads"], report["scale"]
    head = f"{h['processor']}, {' '.join(h['isa'])}; {threads} threads each; {report['date']}; rates per {unit}.\n"
    if scale > 1:
        head += f"**All sizes divided by {scale}: a quick look, no result.**\n"
    limited = [machine(limits(records, model)) for model in {e.model: 0 for e in chosen}]
    parts = (
        head,
        table(found),
        *limited,
        bandwidths(chosen, records, known),
        remarks(known, records),
        profile_table(records),
    )
    text = "\n".join(part for part in parts if part)
    output.with_suffix(".md").write_text(text, encoding="utf-8")
    plot(found, output.with_suffix(".svg"))
    print(f"\n{text}\n{output}")


if __name__ == "__main__":
    main()
