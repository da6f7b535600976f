"""Octavo beside its peers on this machine: python bench/run.py [--rounds 3] [--only NAME ...] [--resume FILE].

Contestants are processes that load once and are idle while another runs; they take turns within a round. A ratio is
taken within its round, because the machine's own speed drifts, and the median of the rounds counts. What is recorded
after every turn can be continued with --resume. The table goes to standard output and, with a plot, beside the file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plot
from contestant import ContestantError, Contestants
from experiments import Experiment, experiments
from host import host
from loads import SEED
from report import profile_table, remarks, results, table
from ways import CACHE, Way, ways

HERE = Path(__file__).resolve().parent
Record = dict[str, Any]


def main() -> None:
    given = arguments()
    everything = experiments(host()["isa"], given.scale)
    names = [e.name for e in everything]
    unknown = sorted(set(given.only) - set(names))
    if unknown:
        sys.exit(f"--only: there is no experiment {unknown[0]!r}; there are {', '.join(names)}")
    chosen = [e for e in everything if e.name in (given.only or names)]
    if given.list:
        print("\n".join(f"{e.name:10} {e.seconds:4} s a round: {', '.join(e.ways)}" for e in chosen))
        return
    report = resumed(given) if given.resume else new_report(given)
    output: Path = given.resume or given.output or HERE / "results" / f"cpu-{time.strftime('%Y-%m-%d-%H%M')}.json"
    contestants = ways(report["threads"], given.kv_memory, eager=given.eager)
    unwanted = [*given.without, *(("vllm", "llama") if given.alone else ())]
    wanted = sorted({w for e in chosen for w in e.ways if not any(word in w for word in unwanted)})
    for name in wanted:
        if contestants[name].missing:
            print(f"{name} is left out: {contestants[name].missing}\n", flush=True)
    rounds = {e.name: 1 if e.once and e.name not in given.only else given.rounds for e in chosen}
    seconds = sum(e.seconds * rounds[e.name] for e in chosen) / given.scale
    print(f"{len(chosen)} experiments: about {seconds / 60 + 4:.0f} minutes on two quiet cores", flush=True)
    measure(chosen, rounds, {w: contestants[w] for w in wanted}, report, output)
    publish(chosen, report, output, "cpu_seconds" if given.cpu_time else "seconds")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="experiments to run (see --list)")
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="WORD", help="leave out contestants with this in their names"
    )
    parser.add_argument("--list", action="store_true", help="name the experiments and leave")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each contestant")
    parser.add_argument("--kv-memory", default="1Gi", metavar="SIZE", help="of each of Octavo's engines")
    parser.add_argument("--alone", action="store_true", help="Octavo only: to see where it stands, not a comparison")
    parser.add_argument("--eager", action="store_true", help="vLLM without torch.compile: starts sooner, runs slower")
    parser.add_argument("--scale", type=int, default=1, help="divide all sizes by this, for a quick look")
    parser.add_argument("--cpu-time", action="store_true", help="rates per CPU second: for a machine that is busy")
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/cpu-<date>.json)")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on with an earlier result file")
    return parser.parse_args()


def new_report(given: argparse.Namespace) -> dict[str, Any]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sizes = {"threads": given.threads, "scale": given.scale, "seed": SEED}
    return {"date": now, "host": host(), **sizes, "contestants": {}, "commands": {}, "records": []}


def resumed(given: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(given.resume.read_text(encoding="utf-8"))
    if report["host"] != host() or report["scale"] != given.scale:
        sys.exit(f"{given.resume} is of another machine or scale: its rounds cannot be put beside new ones")
    return report


def measure(
    chosen: Sequence[Experiment],
    rounds: dict[str, int],
    contestants: dict[str, Way],
    report: dict[str, Any],
    output: Path,
) -> None:
    """Run what the report does not have yet; it is written after every turn."""
    CACHE.mkdir(parents=True, exist_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    records: list[Record] = report["records"]
    warm: set[str] = set()
    with Contestants({name: way.command for name, way in contestants.items()}, CACHE) as running:
        for number, experiment in itertools.product(range(1, max(rounds.values()) + 1), chosen):
            able = [w for w in experiment.ways if w in contestants and not contestants[w].missing]
            here = [r for r in records if (r["experiment"], r["round"]) == (experiment.name, number)]
            if number > rounds[experiment.name] or {r["way"] for r in here if "error" not in r} >= set(able):
                continue
            # A round stands or falls as a whole: half of one was taken at another time of the day.
            records[:] = [r for r in records if r not in here]
            for way in able:
                record = {"experiment": experiment.name, "round": number, "way": way}
                records.append(record | turn(running, way, contestants[way], experiment.command, warm))
                say(records[-1])
                report["contestants"] |= running.ready
                report["commands"][way] = [Path(part).name for part in contestants[way].command]
                output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def turn(running: Contestants, name: str, way: Way, command: str, warm: set[str]) -> dict[str, Any]:
    """One measurement, or the reason why there is none."""
    try:
        contestant = running.get(name)
        if name not in warm:
            for first in way.warm:
                contestant.run(first)
            warm.add(name)
        before = os.getloadavg()[0]
        return {"load_average_before": round(before, 2)} | contestant.run(command)
    except ContestantError as error:
        return {"error": str(error)}


def say(record: Record) -> None:
    shown = {k: v for k, v in record.items() if isinstance(v, int | float | str) and k not in {"experiment", "way"}}
    if "tokens" in record:
        shown["rate"] = round(record["tokens"] / record["seconds"], 1)
    print(f"{record['experiment']:9} {record['way']:18} " + " ".join(f"{k}={v}" for k, v in shown.items()), flush=True)


def publish(chosen: Sequence[Experiment], report: dict[str, Any], output: Path, unit: str) -> None:
    """Table and plot beside the result file."""
    found = results(chosen, report["records"], unit)
    records = report["records"]
    h, threads, scale = report["host"], report["threads"], report["scale"]
    head = f"{h['processor']}, {' '.join(h['isa'])}; {threads} threads each; {report['date']}; rates per {unit}.\n"
    if scale > 1:
        head += f"**All sizes divided by {scale}: a quick look, no result.**\n"
    text = "\n".join((head, table(found), remarks(report["contestants"], records), profile_table(records)))
    output.with_suffix(".md").write_text(text, encoding="utf-8")
    plot.goals(found, output.with_suffix(".svg"))
    print(f"\n{text}\n{output}")


if __name__ == "__main__":
    main()
