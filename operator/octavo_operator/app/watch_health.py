"""Watches the watches: back-off for those that end at once, liveness for those that stop reconnecting.

A healthy watch reconnects at least every five minutes, and earlier if it receives nothing, not even a bookmark, for a
minute. So the time of its last request separates a live watch from one whose task has died.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 15.0
# A request this many seconds after the previous one needs no back-off.
CALM_SECONDS = 30.0


class WatchHealth:
    """Records the requests of `watches` watches.

    Calls `complete` once each watch has listed its resources, and `missed` when one lists again or its kind is
    undefined.
    """

    def __init__(
        self,
        watches: int,
        complete: Callable[[], None],
        missed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watches = watches
        self._complete = complete
        self._missed = missed
        self._clock = clock
        self._requests: dict[tuple[str, bool], tuple[float, float]] = {}
        self._known: set[str] = set()
        self._undefined: set[str] = set()

    def pause(self, path: str, *, watch: bool) -> float:
        """Seconds to wait before the next list, or `watch`, of `path`."""
        now = self._clock()
        last, before = self._requests.get((path, watch), (float("-inf"), 0.0))
        wait = 0.0 if now - last >= CALM_SECONDS else min(max(2 * before, FIRST_PAUSE), LONGEST_PAUSE)
        self._requests[path, watch] = (now + wait, wait)
        return wait * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing

    def read(self, path: str) -> None:
        """A list of `path` is complete. If it is not the first, events were missed: a list does not show deletions."""
        if path in self._known:
            self._missed()
        self._undefined.discard(path)
        self._known.add(path)
        if len(self._known) == self._watches:
            self._complete()

    def undefined(self, path: str) -> None:
        """The kind of `path` is no longer defined: all its objects are gone."""
        if path not in self._undefined:
            self._undefined.add(path)
            self._missed()

    def silence(self) -> float:
        """The longest time in seconds that a watch has sent no request."""
        latest: dict[str, float] = {}
        for (path, _), (at, _) in self._requests.items():
            latest[path] = max(latest.get(path, at), at)
        return self._clock() - min(latest.values()) if latest else 0.0
