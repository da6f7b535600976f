"""`python -m stages [STAGE...]`: runs all stages of the tests, or the named ones; each is a target of the Makefile."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from stages import report
from stages.run import Lane, run

ROOT = Path(__file__).resolve().parents[2]
# Lanes run side by side. What computes for long yields the processors to what mostly waits for others, whose time-outs
# would otherwise measure the neighbour.
LANES = (
    Lane(("e2e",)),
    Lane(("lint", "types", "unit", "kernels", "integration-engine"), niceness=5),
    Lane(("integration-cluster",), niceness=3, after="unit"),
)


def main() -> int:
    """The command line; 0 when every stage passed."""
    parser = argparse.ArgumentParser(prog="stages", description=__doc__)
    stages = [stage for lane in LANES for stage in lane.stages]
    parser.add_argument("stage", nargs="*", help=f"default: all of {', '.join(stages)}")
    chosen = parser.parse_args().stage or stages
    if unknown := sorted(set(chosen) - set(stages)):
        parser.error(f"no stage {unknown[0]!r}; there are {', '.join(stages)}")
    # Started by make, these would make the inner make take part in a job server that it cannot reach.
    environment = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
    }
    results = run([lane.only(chosen) for lane in LANES], ROOT, environment, sys.stdout)
    print(report.table(results), flush=True)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
