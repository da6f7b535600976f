"""A bounded map of the most recently used keys. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(slots=True)
class RecentMap(Generic[V]):
    """A map that keeps at least the `limit // 2` last used keys and at most `limit`: two generations, no list."""

    limit: int
    _young: dict[bytes, V] = field(default_factory=dict)
    _old: dict[bytes, V] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __contains__(self, key: bytes) -> bool:
        return key in self._young or key in self._old

    def get(self, key: bytes) -> V | None:
        """The value of a key; does not count as a use."""
        found = self._young.get(key)
        return self._old.get(key) if found is None else found

    def fill(self, pairs: Iterable[tuple[bytes, V]]) -> None:
        """Set all keys to these values, as a use."""
        young, old, half = self._young, self._old, self.limit // 2
        for key, value in pairs:
            if key not in young:
                if len(young) >= half:
                    self._old = old = young
                    self._young = young = {}
                old.pop(key, None)
            young[key] = value

    def leading(self, keys: Sequence[bytes]) -> list[V]:
        """The values of the leading keys, up to the first missing one."""
        young, old = self._young, self._old
        found = []
        for key in keys:
            value = young.get(key)
            if value is None:
                value = old.get(key)
                if value is None:
                    break
            found.append(value)
        return found

    def renew(self, keys: Iterable[bytes], value: V) -> list[bytes]:
        """Use all keys; missing ones get `value` and are returned."""
        young, old, half = self._young, self._old, self.limit // 2
        new = []
        for key in keys:
            if key in young:
                continue
            known = old.pop(key, None)
            if known is None:
                known = value
                new.append(key)
            if len(young) >= half:
                self._old = old = young
                self._young = young = {}
            young[key] = known
        return new

    def discard(self, keys: Iterable[bytes]) -> None:
        """Drop the keys that are present."""
        young, old = self._young, self._old
        for key in keys:
            # A key is in only one generation.
            if young.pop(key, None) is None:
                old.pop(key, None)
