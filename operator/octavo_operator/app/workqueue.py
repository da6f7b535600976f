"""A work queue with client-go semantics: equal keys are deduplicated, and a key has at most one worker at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from octavo_operator.metrics.process import QueueMetrics

K = TypeVar("K", bound=Hashable)
Reconcile = Callable[[K], Awaitable[float | None]]

logger = logging.getLogger(__name__)

# Seconds between two passes of one key, unless the first failed: a rollout of five pods causes 100 events in seconds.
PAUSE = 1.0
BASE_DELAY = 0.05
# Also the longest wait of a key after the end of an outage that no watch reports.
MAX_DELAY = 60.0


class WorkQueue(Generic[K]):
    """Keys to reconcile.

    A key that waits is not added a second time. A key added during its pass is processed once more, `pause` seconds
    after the pass; all additions until then are one item. A key for which `worth` is false at its turn is dropped.
    A failed key is retried with exponential back-off, and not before the seconds that `patience` reads from the error;
    success resets the back-off.
    """

    def __init__(
        self,
        metrics: QueueMetrics,
        patience: Callable[[Exception], float] = lambda _: 0.0,
        worth: Callable[[K], bool] = lambda _: True,
        pause: float = PAUSE,
    ) -> None:
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._dirty: dict[K, float] = {}
        self._working: dict[K, float] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._logged: dict[K, str] = {}
        self._metrics = metrics
        self._patience = patience
        self._worth = worth
        self._pause = pause
        self._pausing: set[K] = set()
        metrics.follow(depth=self._ready.qsize, longest=self.longest_running)

    def add(self, key: K) -> None:
        """Reconcile `key` as soon as a worker is free."""
        if key in self._dirty:
            return
        self._dirty[key] = time.monotonic()
        self._metrics.added()
        if key not in self._working and key not in self._pausing:
            self._ready.put_nowait(key)

    def add_after(self, key: K, delay: float) -> None:
        """Add `key` in `delay` seconds; the earliest of several delays wins."""
        loop = asyncio.get_running_loop()
        waiting = self._timers.get(key)
        if waiting is not None:
            if waiting.when() <= loop.time() + delay:
                return
            waiting.cancel()
        self._timers[key] = loop.call_later(delay, self._due, key)

    def add_rate_limited(self, key: K, least: float = 0.0) -> float:
        """Add `key` after its back-off, but not before `least` seconds; returns the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # Bounded exponent: after thousands of failures the power would not fit into a float.
        delay: float = max(least, min(BASE_DELAY * 2 ** min(failures, 20), MAX_DELAY))
        self._metrics.retried()
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Reset the back-off of `key`."""
        self._failures.pop(key, None)
        self._logged.pop(key, None)

    def longest_running(self) -> float:
        """Seconds since the oldest running pass began; 0 when none runs."""
        return time.monotonic() - min(self._working.values()) if self._working else 0.0

    async def work(self, reconcile: Reconcile[K]) -> None:
        """One worker: reconciles keys until cancelled. `reconcile` returns the seconds until its next pass, or None."""
        while True:
            key = await self._ready.get()
            now = time.monotonic()
            added = self._dirty.pop(key)
            if not self._worth(key):
                continue
            self._metrics.queued(now - added)
            self._working[key] = now
            try:
                again = await reconcile(key)
            except Exception as error:
                delay = self.add_rate_limited(key, self._patience(error))
                self._log(key, str(error), delay)
                logger.debug("traceback", exc_info=True, extra={"key": str(key)})
            else:
                self.forget(key)
                self._pausing.add(key)
                asyncio.get_running_loop().call_later(self._pause, self._paused, key)
                if again is not None:
                    self.add_after(key, again)
            finally:
                self._metrics.worked(time.monotonic() - self._working.pop(key))
                if key in self._dirty and key not in self._pausing:
                    self._ready.put_nowait(key)

    def _paused(self, key: K) -> None:
        self._pausing.discard(key)
        if key in self._dirty:
            # The queue duration excludes the pause.
            self._dirty[key] = time.monotonic()
            self._ready.put_nowait(key)

    def _log(self, key: K, text: str, delay: float) -> None:
        """Log a failure as a warning; at debug level if the last failure of this key had the same text."""
        level = logging.DEBUG if self._logged.get(key) == text else logging.WARNING
        self._logged[key] = text
        logger.log(level, "reconcile failed: %s", text, extra={"key": str(key), "retry_seconds": round(delay, 2)})

    def _due(self, key: K) -> None:
        del self._timers[key]
        self.add(key)
