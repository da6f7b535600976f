"""A process and all that it starts, ended together: compilers, spawned workers, servers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def group(
    command: Sequence[str], log: Path, patience: float, mode: str = "a", env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, whose output goes to a file.

    Afterwards it is told to end, and what is left of the group after `patience` seconds is killed.
    """
    with log.open(mode) as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()  # so that it ends what it started itself
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=patience)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
