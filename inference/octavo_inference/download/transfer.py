"""Shared by hubs and buckets: remote files, resumable downloads, retries."""

from __future__ import annotations

import errno
import http.client
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from octavo_inference.common.errors import OctavoError

ATTEMPTS = 6
# A longer Retry-After ends the download; the container's next start tries again.
_PATIENCE = 300.0


class PrefetchError(OctavoError):
    """The model cannot be downloaded. The message has cause and fix, `reason` is one word for programs."""

    def __init__(self, message: str, reason: str = "DownloadFailed") -> None:
        super().__init__(message)
        self.reason = reason


def of_module(folder: str) -> bool:
    """Whether a folder is that of a module of sentence-transformers, as in 1_Pooling; others have other formats."""
    return re.fullmatch(r"\d_[A-Za-z]+", folder) is not None


class BrokenError(Exception):
    """A failed attempt that may be retried, after `after` seconds at the earliest."""

    def __init__(self, message: str, reason: str = "DownloadFailed", after: float = 0.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.after = after


class CorruptError(BrokenError):
    """The file is complete, but its hash is wrong."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of the repository. A hub gives `sha256` for large files and `blob` (git's SHA-1) for the others.

    A bucket gives `etag`, which changes with the content but is no hash of it.
    """

    name: str
    size: int
    sha256: str | None
    blob: str | None
    etag: str | None = None


class Remote(Protocol):
    """A hub or a bucket. `repo`: its name of the model; `commit`: the pinned revision."""

    def commit(self, repo: str, revision: str, /) -> str:
        """The commit that a revision refers to now."""
        ...

    def files(self, repo: str, commit: str, /) -> Sequence[RemoteFile]:
        """The files at the top of the model, and those in folders of modules of sentence-transformers."""
        ...

    def head(self, repo: str, commit: str, file: RemoteFile, count: int, /) -> bytes:
        """The first `count` bytes of a file."""
        ...

    def download(self, repo: str, commit: str, file: RemoteFile, folder: Path, tell: Callable[[int], None], /) -> None:
        """Have a file complete and checked in `folder`. `tell` is given the bytes of each piece."""
        ...


def complete(file: RemoteFile, folder: Path, attempt: Callable[[Path], None], sleep: Callable[[float], None]) -> None:
    """Download `file` into `folder`: repeat `attempt`, which resumes from the partial file, until it succeeds."""
    part = folder / f"{file.name}.part"
    part.parent.mkdir(exist_ok=True)
    attempts = corrupt = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            attempt(part)
        except (BrokenError, OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise disk_full(folder, file.size - before) from error
            # An attempt that made progress does not count: a slow connection is not a failure.
            moved = part.exists() and part.stat().st_size > before
            attempts = 0 if moved else attempts + 1
            corrupt += isinstance(error, CorruptError)
            wait(max(attempts, corrupt), attempts, error, file.name, sleep)
        else:
            part.rename(folder / file.name)
            return


def wait(tried: int, doubled: int, error: Exception, what: str, sleep: Callable[[float], None]) -> None:
    """Sleep before the next attempt: exponential back-off, at least Retry-After. Raises after the last attempt."""
    after = error.after if isinstance(error, BrokenError) else 0.0
    if tried >= ATTEMPTS or after > _PATIENCE:
        reason = error.reason if isinstance(error, BrokenError) else "DownloadFailed"
        told = f", and asks for {after:.0f} s of patience" if after > _PATIENCE else ""
        raise PrefetchError(f"{what}: {error}{told} ({tried} attempts)", reason) from error
    sleep(max(after, min(2.0**doubled, 60.0)))


def disk_full(folder: Path, needed: int) -> PrefetchError:
    """The error message if `needed` bytes do not fit on the disk."""
    free = shutil.disk_usage(folder).free
    return PrefetchError(f"{folder} has {free / 1e9:.2f} GB free and the model needs {needed / 1e9:.2f} GB", "DiskFull")


def until_terminated(program: Callable[[], int]) -> NoReturn:
    """Run `program` as the main process of a container, which ends with it, or at once on SIGTERM.

    PID 1 ignores signals without a handler, so a deleted pod would wait for its whole grace period. Python runs signal
    handlers in the main thread between bytecodes: `program` runs in another thread, because it may block in C code.
    """
    codes = [1]

    def run() -> None:
        codes.append(program())

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    sys.exit(codes[-1])
