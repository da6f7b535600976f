"""Back-off shared by all callers when the API server sends Retry-After."""

from __future__ import annotations

import asyncio
import random
import time

# Jitter in seconds, so that waiting callers do not resume at the same instant.
_SPREAD = 0.5


class Throttle:
    """The Retry-After of one server. Calls in flight are not affected."""

    def __init__(self) -> None:
        self._until = 0.0

    def ask(self, seconds: float) -> None:
        """Block new calls for `seconds`."""
        self._until = max(self._until, time.monotonic() + seconds)

    async def wait(self) -> None:
        """Wait until new calls are allowed."""
        while (left := self._until - time.monotonic()) > 0:  # noqa: ASYNC110 - the end is a time that may move
            await asyncio.sleep(left + random.uniform(0, _SPREAD))  # noqa: S311 - spreads load, guards nothing
