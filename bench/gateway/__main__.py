"""Compares Octavo's gateway with vllm-router, nginx and no proxy: python -m bench.gateway [--quick] [--only NAME ...].

Proxies take turns within a round, so that other load on the machine affects all of them. Only ratios within one run are
comparable; times are for orientation. The table goes to standard output and, with a plot, next to the result file.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from bench.gateway.conversations import Talk, conversations
from bench.gateway.overhead import Sizes, cores, crowd, overhead
from bench.gateway.proxies import PROXIES, version
from bench.gateway.tables import picture, table
from bench.lib.host import new_report, result_file
from bench.lib.results import save

EXPERIMENTS = ("overhead", "crowd", "prefix")
QUICK = Sizes(
    rounds=1, seconds=0.5, plain_rate=50.0, stream_rate=10.0, events=3, flat_out_connections=4, crowd=50,
    crowd_events=3, crowd_gap=0.2, crowd_ramp=0.5,
)  # fmt: skip


def main() -> None:
    given = arguments()
    # A stream needs two connections of a proxy and one of the client.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    versions = {name: version(name) for name in PROXIES}
    for name, found in versions.items():
        if found.startswith("missing"):
            print(f"{name} is left out, install it with: {found.removeprefix('missing: ')}\n", flush=True)
    ways = [name for name in PROXIES if not versions[name].startswith("missing")]
    sizes, talk = QUICK if given.quick else Sizes(rounds=given.rounds), Talk(rounds=given.rounds)
    report = new_report(
        versions=versions, quick=given.quick, load_average=os.getloadavg(), sizes=asdict(sizes), talk=asdict(talk)
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report["records"] = runner.run(measure(given, ways, sizes, talk))
    publish(report, given.output)
    if failed := [r for r in report["records"] if r["errors"]]:
        sys.exit(f"{len(failed)} measurements had errors")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of each experiment (default %(default)s)")
    parser.add_argument(
        "--only", nargs="+", choices=EXPERIMENTS, default=[], metavar="NAME", help=", ".join(EXPERIMENTS)
    )
    parser.add_argument("--quick", action="store_true", help="to see that it works: seconds, fake pods only, no result")
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no round of conversations after this")
    parser.add_argument("--output", type=Path, default=result_file("gateway"), help="result file")
    return parser.parse_args()


async def measure(given: argparse.Namespace, ways: list[str], sizes: Sizes, talk: Talk) -> list[dict[str, Any]]:
    until = time.monotonic() + given.minutes * 60
    chosen = given.only or (EXPERIMENTS[:2] if given.quick else EXPERIMENTS)
    records: list[dict[str, Any]] = []
    everything = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores()[0])
    if "overhead" in chosen:
        records += await overhead(["direct", *ways], sizes, say)
    if "crowd" in chosen:
        records += await crowd(["direct", *ways], sizes, say)
    os.sched_setaffinity(0, everything)
    if "prefix" in chosen:
        records += await conversations(ways, talk, until, say)
    return records


def say(record: dict[str, Any]) -> None:
    shown = {key: value for key, value in record.items() if key not in {"experiment", "round", "way"}}
    head = f"{record['experiment']:9} {record['round']} {record['way']:12}"
    print(head + " ".join(f"{key}={value}" for key, value in shown.items()), flush=True)


def publish(report: dict[str, Any], output: Path) -> None:
    """Write the result file, its table and its plot."""
    save(output, report)
    text = table(report)
    output.with_suffix(".md").write_text(text, encoding="utf-8")
    picture(report["records"], output.with_suffix(".svg"))
    print(f"\n{text}\n{output}")


if __name__ == "__main__":
    main()
