"""API keys from a file, kept as hashes only."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from pathlib import Path

from octavo_inference.common.errors import SettingsError

_RELOAD_SECONDS = 5.0
_TENANT_CHARACTERS = 16


class Keys:
    """The keys of a file, one per line. Ignores empty lines and lines that start with #.

    A changed file is read again, so a key can be rotated without a restart: list both, then drop the old one. Raises
    `SettingsError` if the file cannot be read or contains no key.
    """

    def __init__(self, path: str, flag: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path)
        self._flag = flag
        self._clock = clock
        self._changed = 0
        self._digests: tuple[bytes, ...] = ()
        self._load()
        self._checked = clock()

    def tenant(self, presented: str | None) -> str | None:
        """A short stable name for the owner of the `presented` key, None for an unknown key. Constant time."""
        self._reload()
        digest = hashlib.sha256((presented or "").encode("utf-8", "surrogateescape")).digest()
        known = False
        for key in self._digests:
            known |= hmac.compare_digest(key, digest)
        return digest.hex()[:_TENANT_CHARACTERS] if known else None

    def _reload(self) -> None:
        now = self._clock()
        if now - self._checked < _RELOAD_SECONDS:
            return
        self._checked = now
        try:
            if self._path.stat().st_mtime_ns != self._changed:
                self._load()
        except (OSError, SettingsError):
            # The file may be half-written or briefly absent: the current keys stay valid.
            return

    def _load(self) -> None:
        try:
            changed = self._path.stat().st_mtime_ns
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{self._flag}: cannot read {self._path}: {error}", self._flag) from None
        keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not keys:
            raise SettingsError(f"{self._flag}: {self._path} holds no key; put one on each line", self._flag)
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in keys)
        self._changed = changed


def presented_key(headers: dict[str, str]) -> str | None:
    """The key of a request: `Authorization: Bearer KEY` or `x-api-key: KEY`."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return headers.get("x-api-key")
