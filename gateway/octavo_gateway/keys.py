"""API keys from a file: one per line, only their hashes in memory, read again when the file changes."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0


class KeyFile:
    """Keys that may call. A file without any key lets nobody in; lines starting with # and empty lines are skipped.

    Raises `OSError` when the file cannot be read at first. Later failures keep the keys there were.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._checked = float("-inf")
        self._stamp = self._stat()
        self._hashes = self._read()

    def allows(self, key: str, now: float) -> bool:
        """Whether `key` is one of the file's keys; takes the same time for every wrong key."""
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            self._refresh()
        digest = _digest(key)
        found = False
        for known in self._hashes:
            found |= hmac.compare_digest(known, digest)
        return found

    def _refresh(self) -> None:
        try:
            stamp = self._stat()
            if stamp != self._stamp:
                self._hashes = self._read()
                self._stamp = stamp
                log.info("read %d API keys", len(self._hashes))
        except OSError as error:
            log.warning("API key file not readable, keeping the keys there were: %s", error.strerror)

    def _stat(self) -> tuple[int, int, int]:
        stat = self._path.stat()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self) -> tuple[bytes, ...]:
        lines = (line.strip() for line in self._path.read_text().splitlines())
        return tuple(_digest(line) for line in lines if line and not line.startswith("#"))


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key a client sent, as `Authorization: Bearer KEY` or `x-api-key: KEY`."""
    scheme, _, value = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("X-Api-Key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
