"""Runs a builder: the last line of its output is the step's detail; more is shown only if it fails."""

from __future__ import annotations

import subprocess
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from images.errors import ImageError
from toolbox.progress import Step

_KEPT_LINES = 40


def run(command: Sequence[str | Path], step: Step, cwd: Path | None = None) -> str:
    """Output of a command; shows the last line while it runs. Raises ImageError with the last lines if it fails."""
    lines: list[str] = []
    with subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            if text := line.strip():
                lines.append(text)
                step.detail = text[:90]
    step.detail = ""
    if process.returncode:
        tail = "\n  ".join(deque(lines, _KEPT_LINES))
        raise ImageError(f"{step.label}: {Path(command[0]).name} ended with {process.returncode}:\n  {tail}")
    return "\n".join(lines)


def succeeds(command: Sequence[str | Path], timeout: float = 10) -> bool:
    """True if a command exits with 0 within `timeout` seconds."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
