"""Conventions between the processes of a server: exit codes, and the signal that dumps stacks."""

from __future__ import annotations

import signal

DUMP_SIGNAL = signal.SIGUSR1
"""Signal on which an engine process writes the stacks of its threads to stderr, even while it hangs."""

EXIT_CORRUPT = 71
"""Exit code after a failed check of the block pool's invariants: a crash is better than another request's tokens."""

EXIT_DEVICE_LOST = 72
"""Exit code of engine and server after a fatal GPU error."""

EXIT_RANK_LOST = 73
"""Exit code of engine and server after the loss of a tensor-parallel rank."""
