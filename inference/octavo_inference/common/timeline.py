"""Timestamps of a server's start, for its start report."""

from __future__ import annotations

import os
import time
from pathlib import Path


class Timeline:
    """Named marks, in seconds since the kernel started the process, so that the interpreter's start is included."""

    def __init__(self, age: float) -> None:
        self._zero = time.monotonic() - age
        self._marks: list[tuple[str, float]] = [("interpreter", age)]
        self._notes: list[tuple[str, float]] = []

    @classmethod
    def of_process(cls) -> Timeline:
        """From this process' start time, which the kernel keeps in ticks."""
        fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return cls(max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started))

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._zero

    def mark(self, name: str) -> None:
        """Record a completed phase, now."""
        self._marks.append((name, self.now()))

    def note(self, name: str, seconds: float) -> None:
        """Record a phase that took `seconds` in another process."""
        self._notes.append((name, seconds))

    def __str__(self) -> str:
        marks = ", ".join(f"{name} at {at:.2f} s" for name, at in self._marks)
        notes = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self._notes)
        return f"{marks}; of these in the engine: {notes}" if notes else marks
