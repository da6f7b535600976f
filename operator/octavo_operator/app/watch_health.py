"""What the watches ask of the API server, seen from outside: paced when answers end at once, noticed when one stops.

A watch that works is asked for every five minutes, and hears something (a bookmark at least) every minute, or else it
is asked for anew. So the time of the last question tells a watch that is alive from one whose task has died.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 15.0
# A question that follows the one before after this long is no hurry.
CALM_SECONDS = 30.0


class WatchHealth:
    """The questions of `watches` watches.

    `complete` is called when each has read everything, `missed` when one has done so again or found its
    kind undefined.
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
        self._asked: dict[tuple[str, bool], tuple[float, float]] = {}
        self._known: set[str] = set()
        self._undefined: set[str] = set()

    def pause(self, path: str, *, watch: bool) -> float:
        """Seconds to wait before `path` is asked for, as a list or as a `watch`."""
        now = self._clock()
        last, before = self._asked.get((path, watch), (float("-inf"), 0.0))
        wait = 0.0 if now - last >= CALM_SECONDS else min(max(2 * before, FIRST_PAUSE), LONGEST_PAUSE)
        self._asked[path, watch] = (now + wait, wait)
        return wait * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing

    def read(self, path: str) -> None:
        """All of `path` was read. If not for the first time, something went by unseen: deletions, for ever."""
        if path in self._known:
            self._missed()
        self._undefined.discard(path)
        self._known.add(path)
        if len(self._known) == self._watches:
            self._complete()

    def undefined(self, path: str) -> None:
        """There is no such kind as that of `path` any more: whatever was of it is gone."""
        if path not in self._undefined:
            self._undefined.add(path)
            self._missed()

    def silence(self) -> float:
        """Seconds since the quietest watch asked for anything."""
        latest: dict[str, float] = {}
        for (path, _), (at, _) in self._asked.items():
            latest[path] = max(latest.get(path, at), at)
        return self._clock() - min(latest.values()) if latest else 0.0
