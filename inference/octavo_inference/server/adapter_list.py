"""Follows the file that lists a server's adapters (`octavo_protocol.adapters`)."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from octavo_inference.server.adapters import Adapters
from octavo_protocol.adapters import decode_list

log = logging.getLogger("octavo.server")
_POLL_SECONDS = 0.5

Version = tuple[int, int, int]


class AdapterList:
    """A list file. What cannot be read or decoded changes nothing, and is logged once."""

    def __init__(self, path: Path, adapters: Adapters[Any]) -> None:
        self._path = path
        self._adapters = adapters
        self._seen: Version | None = None
        self._problem = ""

    def read(self) -> bool:
        """Apply the file if it has changed. Returns False if there is none that could ever be applied."""
        try:
            status = self._path.stat()
            version = status.st_mtime_ns, status.st_size, status.st_ino
            if version != self._seen:
                listed = decode_list(self._path.read_bytes())
                self._seen, self._problem = version, ""
                self._adapters.follow(listed)
        except (OSError, ValueError) as error:  # msgspec raises UnicodeDecodeError too
            problem = error.strerror if isinstance(error, OSError) else str(error)
            if problem != self._problem:
                log.warning("the list of adapters %s cannot be used: %s", self._path, problem)
                self._problem = problem or ""
        return self._seen is not None

    async def first(self) -> None:
        """Wait for the first list, which comes when all adapters are there or have failed."""
        while not self.read():  # noqa: ASYNC110 -- another process writes the file
            await asyncio.sleep(_POLL_SECONDS)

    async def follow(self) -> None:
        """Apply each change of the file."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            self.read()
