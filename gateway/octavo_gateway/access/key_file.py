"""The file of API keys, reloaded when it changes; only hashes of keys stay in memory.

It has two forms. Plain: one key per line, without limits. With limits: a YAML (or JSON) document `keys: [...]`,
recognized by its first line. In both forms a key may be `sha256:` and the hexadecimal digest of the key.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from octavo_gateway.access.api_keys import ApiKey, KeyFileError, digest_of, hashed, opaque
from octavo_gateway.access.rate_limits import RateLimits

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
# Maximum size of a Secret.
MAX_FILE = 1024 * 1024
_STRUCTURED = re.compile(r"(keys\s*:(\s|\[|\Z)|\{|---(\s|\Z))")


class KeyFile:
    """The valid keys. A file without any key admits no request.

    Raises `OSError` or `KeyFileError` if the file is unusable at first. A later failure keeps the previous keys and
    sets `valid` to False. `generation` increases with every reload.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._checked = float("-inf")
        self._stamp: tuple[int, int, int] | None = self._stat()
        self.generation = 0
        self.valid = True
        try:
            self._entries = parse(self._path.read_text())
        except (KeyFileError, UnicodeDecodeError) as error:
            raise KeyFileError(f"{path}: {_why(error)}") from None

    def find(self, key: str, now: float) -> ApiKey | None:
        """The entry of a key, None if the file does not contain it."""
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            self._refresh()
        return self._entries.get(digest_of(key))

    def limits(self) -> dict[str, RateLimits]:
        """The limits of every account."""
        return {entry.account: entry.limits for entry in self._entries.values()}

    def _refresh(self) -> None:
        stamp: tuple[int, int, int] | None = None
        try:
            stamp = self._stat()
            if stamp == self._stamp:
                return
            self._entries = parse(self._path.read_text())
        except (OSError, KeyFileError, UnicodeDecodeError) as error:
            if self.valid or stamp != self._stamp:
                log.warning("invalid API key file, keeping the previous keys: %s", _why(error))
            self.valid = False
        else:
            self.valid = True
            self.generation += 1
            log.info("read %d API keys", len(self._entries))
        # Set for an invalid file too: so its error is logged once, not every second.
        self._stamp = stamp

    def _stat(self) -> tuple[int, int, int]:
        stat = self._path.stat()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def parse(text: str) -> dict[bytes, ApiKey]:
    """Entries by the digest of their key. Raises `KeyFileError`."""
    if len(text) > MAX_FILE:
        raise KeyFileError(f"the file is longer than {MAX_FILE} characters")
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    if _STRUCTURED.match(first):
        # This import takes a third of the gateway's start time, and a file of plain keys does not need it.
        from octavo_gateway.access.key_document import read  # noqa: PLC0415

        return read(text)
    return _plain(text)


def _plain(text: str) -> dict[bytes, ApiKey]:
    lines = (line.strip() for line in text.splitlines())
    digests = [hashed(line) for line in lines if line and not line.startswith("#")]
    return {digest: ApiKey("", digest.hex(), opaque("key", digest.hex())) for digest in digests}


def _why(error: Exception) -> str:
    # Only the reason: the bytes that failed to decode may be a key.
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    return (error.strerror or "unreadable") if isinstance(error, OSError) else str(error)
