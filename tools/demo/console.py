"""Readable progress: one line per step with its time; a long step shows that it lives, on a terminal and in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

HEARTBEAT_SECONDS = 15.0


class Console:
    """Writes steps to one stream. Not for use from several threads at once."""

    def __init__(self) -> None:
        self._out = sys.stdout
        self._tty = self._out.isatty()
        self._start = time.monotonic()

    def title(self, text: str) -> None:
        """A heading between groups of steps."""
        bold, plain = ("\033[1m", "\033[0m") if self._tty else ("", "")
        self.line(f"\n{bold}{text}{plain}")

    def line(self, text: str) -> None:
        """One whole line."""
        self._out.write(text + "\n")
        self._out.flush()

    def text(self, text: str) -> None:
        """Text as it arrives, such as a streamed answer."""
        self._out.write(text)
        self._out.flush()

    def fact(self, text: str) -> None:
        """Something that changed, with the time since the start."""
        self.line(f"  {time.monotonic() - self._start:6.1f}s  {text}")

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Runs a long step: says when it began, that it goes on, and how long it took."""
        begin = time.monotonic()
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(HEARTBEAT_SECONDS):
                self.line(f"          {name} … {time.monotonic() - begin:.0f} s")

        self.line(f"  {begin - self._start:6.1f}s  {name} …")
        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            self.line(
                f"  {time.monotonic() - self._start:6.1f}s  {name}: failed after {time.monotonic() - begin:.1f} s"
            )
            raise
        else:
            self.line(f"  {time.monotonic() - self._start:6.1f}s  {name}: done in {time.monotonic() - begin:.1f} s")
        finally:
            stop.set()
            thread.join()
