"""What the processes of a server agree on: exit statuses, and the signal that shows where one hangs."""

from __future__ import annotations

import signal

DUMP_SIGNAL = signal.SIGUSR1
"""Makes an engine process write the stacks of its threads to stderr, also while it hangs."""

EXIT_CORRUPT = 71
"""Exit status of an engine whose books are wrong, and of its server: better no answers than someone else's."""

EXIT_DEVICE_LOST = 72
"""Exit status of an engine whose GPU failed for good, and of its server: nothing it could still say would be true."""

EXIT_RANK_LOST = 73
"""Exit status of an engine that lost one of the processes it shares its model with, and of its server."""
