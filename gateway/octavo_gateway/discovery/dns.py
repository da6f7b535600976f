"""Resolves the addresses behind a headless Service, or any other name."""

from __future__ import annotations

import asyncio
import logging
import socket

log = logging.getLogger(__name__)


class Resolver:
    """Resolves names; while that fails, the last known addresses remain in use."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], list[str]] = {}
        self._failed: set[tuple[str, int]] = set()

    async def addresses(self, host: str, port: int) -> list[str]:
        """`host:port` of every address of a name. Repeated failures are logged once."""
        name = host, port
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            if name not in self._failed:
                log.warning("%s does not resolve: %s", host, error.strerror)
            self._failed.add(name)
            return self._last.get(name, [])
        self._failed.discard(name)
        hosts = dict.fromkeys(str(address[0]) for *_, address in found)
        self._last[name] = [f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts]
        return self._last[name]
