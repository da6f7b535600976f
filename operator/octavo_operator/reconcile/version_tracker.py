"""What every key's last pass was based on, so that an event that tells nothing newer costs no pass.

Resource versions are numbers that grow per object (KEP-5504). Only a pass that left nothing to do, and asked for no
time, is worth remembering: until one of the objects it looked at has changed, or one has come, another pass would find
the same. The echo of our own writes, a list that repeats what is known after a broken watch, and the events of one
rollout that came while a pass read their outcome are all told by this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo_operator.api.resource import Key

GONE = 1 << 64


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One event: an object of `key` is now of this `version`; GONE when it was deleted or its version is no number."""

    key: Key
    uid: str
    version: int


def version_of(text: str | None) -> int:
    """A resource version as a number."""
    return int(text) if text and text.isdecimal() else GONE


class VersionTracker:
    """Versions by uid that passes looked at or wrote, and those of events since."""

    def __init__(self) -> None:
        self._settled: dict[Key, Mapping[str, int]] = {}
        self._written: dict[Key, dict[str, int]] = {}
        self._changed: dict[Key, set[tuple[str, int]]] = {}
        self._asked: set[Key] = set()

    def change(self, change: ObjectChange) -> None:
        """An event came."""
        self._changed.setdefault(change.key, set()).add((change.uid, change.version))

    def wrote(self, key: Key, uid: str, version: int) -> None:
        """A pass that is under way made this version of an object."""
        self._written.setdefault(key, {})[uid] = version

    def begin(self, key: Key) -> None:
        """A pass starts: what has changed until now, it will see."""
        self._settled.pop(key, None)
        self._written.pop(key, None)
        self._changed.pop(key, None)
        self._asked.discard(key)

    def settle(self, key: Key, versions: Mapping[str, int]) -> None:
        """A pass found nothing left to do, in objects of these versions by uid."""
        self._settled[key] = versions

    def ask(self, key: Key) -> None:
        """`key` needs a pass that starts from now on, whatever events say."""
        self._asked.add(key)

    def stale(self, key: Key) -> bool:
        """Whether another pass could find anything that the last one did not.

        Our own write is known by its very version: an older one that we did not read may be somebody else's.
        """
        settled = self._settled.get(key)
        if settled is None or key in self._asked:
            return True
        written = self._written.get(key, {})
        for uid, version in self._changed.pop(key, ()):
            if version > settled.get(uid, -1) and version != written.get(uid):
                self._asked.add(key)
                return True
        return False
