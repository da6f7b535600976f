"""Slots of the device for adapters, and the requests that use them. Pure.

An adapter keeps its slot while a request uses it. If others wait for a slot and all are in use, the adapter that has
been there longest takes no new requests until its own have ended: so none waits forever.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Held:
    """What a slot holds. `closing`: it takes no new requests, because others wait for a slot."""

    slot: int
    users: int = 0
    closing: bool = False


class AdapterSlots:
    """`count` slots. Adapters are known by keys."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        # In the order in which they were last placed or used.
        self._held: dict[str, _Held] = {}
        # In the order in which they were placed.
        self._placed: dict[str, None] = {}

    @property
    def keys(self) -> list[str]:
        """The adapters in slots, the least recently used first."""
        return list(self._held)

    @property
    def has_free(self) -> bool:
        """True if a slot was never used, or is empty again."""
        return bool(self._free)

    def users(self, key: str) -> int:
        """Requests that use an adapter in a slot."""
        return self._held[key].users if key in self._held else 0

    def acquire(self, key: str) -> int | None:
        """The slot of an adapter, for a request that uses it from now on. None if it has to wait for one."""
        held = self._held.get(key)
        if held is None or held.closing:
            return None
        held.users += 1
        self._held[key] = self._held.pop(key)
        return held.slot

    def release(self, key: str) -> None:
        """A request that used an adapter has ended."""
        self._held[key].users -= 1

    def place(self, key: str) -> tuple[int, bool] | None:
        """A slot for the adapter next in turn, and whether it has to be loaded there. None if all are in use.

        An unused adapter loses its slot, the least recently used first.
        """
        if key in self._held:
            self._held[key].closing = False
            return self._held[key].slot, False
        if not self._free and self.evict() is None:
            return None
        self._held[key] = _Held(self._free.pop())
        self._placed[key] = None
        return self._held[key].slot, True

    def evict(self) -> int | None:
        """Empty the slot of the least recently used adapter that no request uses. Returns it, None if there is none."""
        unused = next((key for key, held in self._held.items() if not held.users), None)
        return None if unused is None else self.remove(unused)

    def make_room(self) -> None:
        """Close the adapter that has been in its slot for longest, unless one is closing already."""
        if self._placed and not any(held.closing for held in self._held.values()):
            self._held[next(iter(self._placed))].closing = True

    def remove(self, key: str) -> int | None:
        """Empty the slot of an adapter that no request uses. Returns it, None if the adapter has none."""
        held = self._held.pop(key, None)
        if held is None:
            return None
        del self._placed[key]
        self._free.append(held.slot)
        return held.slot
