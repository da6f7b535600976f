"""Progress for a terminal (one live line) and for a log (a line at the end of each step, and a heartbeat)."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_LOG_HEARTBEAT = 15.0


def duration(seconds: float) -> str:
    """Seconds as text: `0.4 s`, `12 s`, `3 m 05 s`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{int(seconds) // 60} m {int(seconds) % 60:02d} s"


class Step:
    """One step in progress; `detail` is its current activity."""

    __slots__ = ("detail", "label", "shown", "started")

    def __init__(self, label: str) -> None:
        self.label = label
        self.detail = ""
        self.started = self.shown = time.monotonic()

    def line(self) -> str:
        """Label, elapsed time, detail."""
        text = f"{self.label} {duration(time.monotonic() - self.started)}"
        return f"{text} · {self.detail}" if self.detail else text


class Progress:
    """Shows steps, also concurrent ones; thread-safe."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._live = self._out.isatty()
        self._steps: list[Step] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def step(self, label: str) -> Iterator[Step]:
        """Shows `label` until the block ends, then its time; a block that raises is marked as failed."""
        step = Step(label)
        with self._lock:
            self._steps.append(step)
            if self._thread is None:
                self._thread = threading.Thread(target=self._refresh, daemon=True)
                self._thread.start()
        mark = "✗"
        try:
            yield step
            mark = "✓"
        finally:
            with self._lock:
                self._steps.remove(step)
                self._print(f"{mark} {step.line()}")

    def note(self, text: str) -> None:
        """A separate line that stays on the terminal."""
        with self._lock:
            self._print(f"  {text}")

    def _print(self, text: str) -> None:
        self._out.write(f"\r\x1b[K{text}\n" if self._live else f"{text}\n")
        self._out.flush()

    def _refresh(self) -> None:
        while not self._wake.wait(0.25):
            with self._lock:
                if self._live and self._steps:
                    self._out.write("\r\x1b[K… " + "  |  ".join(step.line() for step in self._steps)[:110])
                    self._out.flush()
                    continue
                for step in self._steps:
                    if time.monotonic() - step.shown > _LOG_HEARTBEAT:
                        step.shown = time.monotonic()
                        self._print(f"… {step.line()}")
