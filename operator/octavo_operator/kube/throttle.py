"""Waiting as long as the API server asks for, all callers together."""

from __future__ import annotations

import asyncio
import random
import time

# All who waited must not come back in the same instant.
_SPREAD = 0.5


class Throttle:
    """One server's wish to be left alone (`Retry-After`). Calls on their way are not touched."""

    def __init__(self) -> None:
        self._until = 0.0

    def ask(self, seconds: float) -> None:
        """No new call for `seconds`."""
        self._until = max(self._until, time.monotonic() + seconds)

    async def wait(self) -> None:
        """Until calls are welcome again."""
        while (left := self._until - time.monotonic()) > 0:  # noqa: ASYNC110 - the end is a time, and may move
            await asyncio.sleep(left + random.uniform(0, _SPREAD))  # noqa: S311 - spreads load, guards nothing
