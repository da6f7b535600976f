"""Tracks the resource versions that each key's last pass read or wrote, so that stale events cause no pass.

Resource versions are numbers that grow per object (KEP-5504). Only a pass that left nothing to do and requested no
requeue is recorded: until one of the objects it read changes, or a new one appears, another pass would find the same.
This filters events of our own writes, repeated objects after a relist, and events whose outcome a pass already read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo_operator.api.resource import Key

GONE = 1 << 64


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """An event: an object of `key` has this `version`, or GONE if it was deleted or its version is not a number."""

    key: Key
    uid: str
    version: int


def version_of(text: str | None) -> int:
    """A resource version as a number, GONE if it is not one."""
    return int(text) if text and text.isdecimal() else GONE


class VersionTracker:
    """By key: versions by uid that the last pass read and wrote, and those of events since."""

    def __init__(self) -> None:
        self._settled: dict[Key, Mapping[str, int]] = {}
        self._written: dict[Key, dict[str, int]] = {}
        self._changed: dict[Key, set[tuple[str, int]]] = {}
        self._forced: set[Key] = set()

    def observe(self, change: ObjectChange) -> None:
        """Record an event."""
        self._changed.setdefault(change.key, set()).add((change.uid, change.version))

    def wrote(self, key: Key, uid: str, version: int) -> None:
        """The running pass wrote this version of an object."""
        self._written.setdefault(key, {})[uid] = version

    def begin(self, key: Key) -> None:
        """A pass starts, and will read all changes so far."""
        self._settled.pop(key, None)
        self._written.pop(key, None)
        self._changed.pop(key, None)
        self._forced.discard(key)

    def record_settled(self, key: Key, versions: Mapping[str, int]) -> None:
        """A pass found nothing left to do in objects of these versions, by uid."""
        self._settled[key] = versions

    def force(self, key: Key) -> None:
        """Require a new pass for `key`, whatever the versions."""
        self._forced.add(key)

    def needs_pass(self, key: Key) -> bool:
        """True if another pass could find something new.

        Our own write is recognized by its exact version: an older unread version may be someone else's write.
        """
        settled = self._settled.get(key)
        if settled is None or key in self._forced:
            return True
        written = self._written.get(key, {})
        for uid, version in self._changed.pop(key, ()):
            if version > settled.get(uid, -1) and version != written.get(uid):
                self._forced.add(key)
                return True
        return False
