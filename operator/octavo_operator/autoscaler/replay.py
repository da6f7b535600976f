"""`python -m octavo_operator.autoscaler.replay LOG`: repeat the decisions of a log and show differences."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from octavo_operator.autoscale.decision_record import Difference, replay


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 if all decisions are equal, 1 if any differs, 2 if the log cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m octavo_operator.autoscaler.replay",
        description="Repeat the recorded decisions of an operator or a simulation with this version's policy.",
    )
    parser.add_argument("log", type=Path, metavar="LOG", help="file of --decision-log")
    log: Path = parser.parse_args(argv).log
    count, differing, first = 0, 0, None
    try:
        with log.open("rb") as lines:
            for found in replay(lines):
                count += 1
                if found is not None:
                    differing += 1
                    first = first or found
    except (OSError, ValueError) as error:
        print(f"{log}: {error}", file=sys.stderr)
        return 2
    print(f"{count} decisions, {differing} differ")
    if first is None:
        return 0
    print(_shown(first))
    return 1


def _shown(difference: Difference) -> str:
    line = difference.line
    parts = [f"line {difference.number}: {line.key} at {line.now:.3f}"]
    for name in difference.fields:
        recorded, again = getattr(line.decision, name), getattr(difference.again, name)
        parts += [f"  {name}", f"    recorded {recorded}", f"    again    {again}"]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
