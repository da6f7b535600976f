"""Result files: replaced whole, so that a kill while one is written costs what was new in it and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LOST = 3
"""Exit status of a process whose GPU stays failed: a new one may go on."""
INCOMPLETE = 75
"""Exit status of a process that has more to do: call it again (sysexits' EX_TEMPFAIL)."""


def save(path: Path, report: dict[str, Any]) -> None:
    """Write the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def read(path: Path) -> dict[str, Any] | None:
    """A result file; None where there is none, or something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None
