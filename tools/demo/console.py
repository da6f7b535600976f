"""Output of the demo: titles, facts with the time since the start, streamed text."""

from __future__ import annotations

import sys
import time


class Console:
    """Writes to standard output. Long steps are shown by `toolbox.progress`."""

    def __init__(self) -> None:
        self._out = sys.stdout
        self._tty = self._out.isatty()
        self._start = time.monotonic()

    def title(self, text: str) -> None:
        """A heading between groups of steps."""
        bold, plain = ("\033[1m", "\033[0m") if self._tty else ("", "")
        self.line(f"\n{bold}{text}{plain}")

    def line(self, text: str) -> None:
        """One complete line."""
        self.text(text + "\n")

    def text(self, text: str) -> None:
        """Text as it arrives, such as a streamed answer."""
        self._out.write(text)
        self._out.flush()

    def fact(self, text: str) -> None:
        """An event, with the time since the start."""
        self.line(f"  {time.monotonic() - self._start:6.1f}s  {text}")
