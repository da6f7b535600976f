"""The operator beside thousands of LLMDeployments: `make test-scale`, or `make test-scale SCALE=0.05` for a quick look.

A network of its own, so that no port and no address is anybody else's: root, or user namespaces.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
from tests.scale import plane, report
from tests.scale.run import Run, StuckError
from tests.scale.world import ROOT, Size, connect

INSIDE = "OCTAVO_SCALE_NETWORK"


def enter_network() -> None:
    """Start again in a network namespace where all pod addresses are this machine's own."""
    if os.environ.get(INSIDE):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        subprocess.run(["ip", "route", "add", "local", plane.POD_NETWORK, "dev", "lo"], check=True)
        return
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", "--net", *user, "--", sys.executable, *sys.orig_argv[1:]]
    os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})  # noqa: S606 - itself, elsewhere


async def measure(size: Size, rest: float, workers: int) -> Run:
    """All phases."""
    with plane.cluster() as (control, folder):
        kube = await connect(control)
        run = Run(kube, control, folder, size, workers)
        try:
            await run.all(rest)
        except StuckError as error:
            run.stuck = str(error)
        finally:
            await run.stop()
            await kube.close()
    return run


def main() -> int:
    """0 when every aim is met."""
    parser = argparse.ArgumentParser(prog="make test-scale", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of 1,000 nodes, 2,000 LLMDeployments")
    parser.add_argument("--rest", type=float, default=330.0, help="seconds at rest; a resync comes every 300")
    parser.add_argument("--workers", type=int, default=4, help="passes of the operator at the same time")
    parser.add_argument("--output", type=Path, help="results without ending (default: bench/results/scale-DATE)")
    arguments = parser.parse_args()
    enter_network()
    size = Size.of(arguments.scale)
    began = datetime.now(UTC)
    run = asyncio.run(measure(size, arguments.rest, arguments.workers))
    host = f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB for everything"
    about = {
        "began": began.isoformat(timespec="seconds"),
        "host": host,
        "python": platform.python_version(),
        "workers": arguments.workers,
        "scale": arguments.scale,
        "size": {"nodes": size.nodes, "deployments": size.deployments, "pods": size.pods},
        "stuck": run.stuck,
        "seconds": round(time.time() - began.timestamp()),
    }
    path = arguments.output or ROOT / f"bench/results/scale-{began:%Y-%m-%d-%H%M}"
    if not run.phases:
        print(f"FAILED: {run.stuck}")
        return 1
    report.write(path, run.phases, run.samples, about)
    print(f"\n{report.table(run.phases, about['size'], host)}\n{path}.json, .md, .svg", flush=True)
    missed = [f"{aim}: {measured}" for aim, measured, met in report.verdict(run.phases) if not met]
    if run.stuck:
        missed.append(run.stuck)
    print("PASSED: every aim is met" if not missed else "FAILED: " + "; ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
