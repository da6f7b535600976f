"""Conventions between the processes of a server: exit codes, and the signal that dumps stacks."""

from __future__ import annotations

import signal
from pathlib import Path

DUMP_SIGNAL = signal.SIGUSR1
"""Signal on which an engine process writes the stacks of its threads to stderr, even while it hangs."""

EXIT_CORRUPT = 71
"""Exit code after a failed check of the block pool's invariants: a crash is better than another request's tokens."""

EXIT_DEVICE_LOST = 72
"""Exit code of engine and server after a fatal GPU error."""

EXIT_RANK_LOST = 73
"""Exit code of engine and server after the loss of a tensor-parallel rank."""


def is_stopped(pid: int) -> bool:
    """True if a process is stopped by a signal or a tracer, so that it handles no signal. False where /proc is not."""
    try:
        # The name, which may have spaces and parentheses, precedes the state.
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in {"T", "t"}
