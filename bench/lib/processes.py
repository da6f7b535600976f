"""Process groups that are terminated as a whole, and their ports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[2]
"""Root of the repository, where `python -m bench...` finds its packages."""
CACHE = Path(os.environ.get("OCTAVO_CACHE") or Path.home() / ".cache" / "octavo") / "bench"
"""Installation folder of other systems, and folder of logs."""
VLLM = CACHE / "vllm" / "bin" / "python"
LLAMA = CACHE / "llama" / "bin" / "python"
# Fine enough for measured starts; no event reports that a port answers.
_POLL = 0.005


def log_file(name: str) -> Path:
    """Path of a log below `CACHE`."""
    CACHE.mkdir(parents=True, exist_ok=True)
    return CACHE / f"{name}.log"


@contextmanager
def group(
    command: Sequence[str], log: Path, patience: float, mode: str = "a", env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process group of its own, in `ROOT`, with its output in a file.

    The process is terminated at the end of the block; after `patience` seconds the rest of the group is killed.
    """
    with log.open(mode) as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()  # it terminates its own children
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=patience)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_ports(count: int) -> list[int]:
    """Ports that no process listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path | None, seconds: float) -> None:
    """Wait until the URL answers without a server error. RuntimeError with the end of the log when it does not."""
    end = time.monotonic() + seconds
    while not answers(url):
        if (status := process.poll()) is not None:
            raise RuntimeError(f"the process ended with status {status}{_end_of(log)}")
        if time.monotonic() > end:
            raise RuntimeError(f"nothing answers at {url} after {seconds:.0f} s{_end_of(log)}")
        time.sleep(_POLL)


def _end_of(log: Path | None) -> str:
    return f": {last(log)}" if log else ""


def answers(url: str) -> bool:
    """Return True unless the request ends with a connection error or 5xx."""
    try:
        with urlopen(url, timeout=2):  # noqa: S310 (our own URLs)
            return True
    except HTTPError as error:
        return error.code < 500
    except OSError:
        return False


def last(log: Path, lines: int = 3) -> str:
    """The last lines of a log."""
    return " ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
