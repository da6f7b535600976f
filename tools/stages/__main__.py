"""`python -m stages [STAGE...]`: runs all stages of the tests, or the named ones; each is a target of the Makefile."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from stages import report
from stages.run import Lane, run

ROOT = Path(__file__).resolve().parents[2]
# Lanes run in parallel. Long CPU-bound stages have a lower priority than stages that mostly wait: otherwise the
# timeouts of the latter would depend on the load of the former.
LANES = (
    Lane(("e2e",)),
    Lane(("lint", "types", "unit", "kernels", "integration-engine"), niceness=5),
    Lane(("integration-cluster",), niceness=3, after="unit"),
)


def main() -> int:
    """Run the command line; 0 if every stage passed."""
    parser = argparse.ArgumentParser(prog="stages", description=__doc__)
    stages = [stage for lane in LANES for stage in lane.stages]
    parser.add_argument("stage", nargs="*", help=f"default: all of {', '.join(stages)}")
    chosen = parser.parse_args().stage or stages
    if unknown := sorted(set(chosen) - set(stages)):
        parser.error(f"unknown stage {unknown[0]!r}; known are {', '.join(stages)}")
    # Under make, these variables would connect the inner make to a job server that it cannot reach.
    environment = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
    }
    results = run([lane.only(chosen) for lane in LANES], ROOT, environment, sys.stdout)
    print(report.table(results), flush=True)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
