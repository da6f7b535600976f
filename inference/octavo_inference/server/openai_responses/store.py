"""Keeps responses in memory, within bounds on entries and bytes, for a tenant and for all tenants together.

A finished response is kept as JSON, so that its size is known. When there is no room, the least recently used finished
response goes first. A running one is never removed for another; if only running ones are left, nothing is added. Pure:
the clock is passed in.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from octavo_inference.server.openai_responses.background import BackgroundRun
from octavo_inference.server.openai_responses.items import Item
from octavo_inference.server.openai_responses.resource import FINAL, ResponseObject

# Bytes that an entry and each of its items take besides their JSON: index entries, objects and keys.
ENTRY_OVERHEAD = 1024
ITEM_OVERHEAD = 384
EXPIRY_SECONDS = 30.0
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Bounds of a store. `entries` 0 turns it off. A tenant has at most `tenant_percent` of each, but one entry."""

    entries: int = 0
    bytes: int = 0
    ttl: float = 3600.0
    tenant_percent: int = 100

    @property
    def tenant_entries(self) -> int:
        """Entries of a tenant at most."""
        return max(1, self.entries * self.tenant_percent // 100)

    @property
    def tenant_bytes(self) -> int:
        """Bytes of a tenant at most."""
        return self.bytes * self.tenant_percent // 100

    @property
    def input_bytes(self) -> int:
        """Bytes of the items before an answer at most. Every use of them decodes them in the event loop."""
        return self.tenant_bytes // 8


@dataclass(slots=True, eq=False)
class StoredResponse:
    """A response with the items before its answer, in JSON. `run` is set for a response of the background."""

    tenant: str
    id: str
    input_items: bytes
    response: bytes
    item_ids: tuple[str, ...]
    is_final: bool
    run: BackgroundRun | None = None
    expires: float = 0.0
    counted: int = 0
    """Bytes that the store counts for it."""

    @classmethod
    def of(
        cls,
        tenant: str,
        items: Sequence[Item],
        response: ResponseObject,
        run: BackgroundRun | None = None,
    ) -> StoredResponse:
        """The entry of a response."""
        return cls(
            tenant,
            response.id,
            _encode(items),
            _encode(response),
            tuple(item.id for item in (*items, *response.output)),
            response.status in FINAL,
            run,
        )

    @property
    def size(self) -> int:
        """Bytes it takes."""
        events = 0 if self.run is None else self.run.size
        return ENTRY_OVERHEAD + ITEM_OVERHEAD * len(self.item_ids) + len(self.input_items) + len(self.response) + events

    def items(self) -> list[Item]:
        """The items before the answer, earlier responses of the conversation included."""
        return msgspec.json.decode(self.input_items, type=list[Item])

    @property
    def background(self) -> bool:
        """True for a response that was generated without a connection."""
        return self._decoded().background

    def conversation(self) -> list[Item]:
        """The items including the answer."""
        return self.items() + self._decoded().output

    def current(self) -> bytes:
        """The response in JSON. A running one has no output yet."""
        if self.run is not None and self.run.started and not self.is_final:
            return _encode(msgspec.structs.replace(self._decoded(), status="in_progress"))
        return self.response

    def _decoded(self) -> ResponseObject:
        return msgspec.json.decode(self.response, type=ResponseObject)


Key = tuple[str, str]


@dataclass(slots=True)
class _Share:
    """A tenant's part. `finished` is in the order of use, least recent first."""

    finished: OrderedDict[str, None] = field(default_factory=OrderedDict)
    entries: int = 0
    bytes: int = 0


class ResponseStore:
    """The stored responses of all tenants. Ids are looked up per tenant."""

    def __init__(self, limits: StoreLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.bytes = 0
        self._clock = clock
        self._entries: dict[Key, StoredResponse] = {}
        self._finished: OrderedDict[Key, None] = OrderedDict()
        self._expiring: OrderedDict[Key, None] = OrderedDict()
        self._shares: dict[str, _Share] = {}
        self._by_item: dict[Key, str] = {}

    @property
    def enabled(self) -> bool:
        """False if nothing is ever stored."""
        return self.limits.entries > 0

    @property
    def planned_bytes(self) -> int:
        """Bytes when it is full."""
        return self.limits.bytes if self.enabled else 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """A tenant's response, which becomes the most recently used one. None if there is none, or no longer."""
        self.expire()
        entry = self._entries.get((tenant, response_id))
        if entry is not None and entry.is_final:
            self._finished.move_to_end((tenant, response_id))
            self._shares[tenant].finished.move_to_end(response_id)
        return entry

    def responses_with(self, tenant: str, item_ids: Iterable[str]) -> set[str]:
        """Ids of a tenant's stored responses with these items, for each item the newest one that has it."""
        self.expire()
        return {self._by_item[tenant, item_id] for item_id in item_ids if (tenant, item_id) in self._by_item}

    def put(self, entry: StoredResponse) -> bool:
        """Add a response, or replace the one of its id. Removes others to make room; False if there cannot be room."""
        self.remove(entry.tenant, entry.id)
        if not self.accepts(entry) or not self._make_room(entry.tenant, entry.size, 1):
            return False
        key = (entry.tenant, entry.id)
        self._entries[key] = entry
        share = self._shares.setdefault(entry.tenant, _Share())
        share.entries += 1
        self._count(entry, entry.size)
        self._by_item.update(((entry.tenant, item), entry.id) for item in entry.item_ids)
        entry.expires = self._clock() + self.limits.ttl
        self._expiring[key] = None
        if entry.is_final:
            self._finished[key] = None
            share.finished[entry.id] = None
        return True

    def accepts(self, entry: StoredResponse) -> bool:
        """False for a response that is never stored, however much room there is."""
        return self.enabled and len(entry.input_items) <= self.limits.input_bytes

    def grew(self, entry: StoredResponse) -> bool:
        """Count what a running response has grown by. Removes others to make room; False if there is none."""
        if (entry.tenant, entry.id) not in self._entries:
            return False
        more = entry.size - entry.counted
        if not self._make_room(entry.tenant, more, 0):
            return False
        self._count(entry, more)
        return True

    def finish(self, entry: StoredResponse, response: ResponseObject, data: bytes) -> None:
        """Put the final response, whose JSON is `data`, in the place of a running one, unless that was removed.

        If there is no room for its answer and events, it is kept without them.
        """
        if self._entries.get((entry.tenant, entry.id)) is not entry:
            return
        if not self.put(_final(entry, response, data, entry.run)):
            response = msgspec.structs.replace(response, output=[])
            self.put(_final(entry, response, _encode(response), None))

    def remove(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Remove a response and return it; None if there is none."""
        key = (tenant, response_id)
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._finished.pop(key, None)
        del self._expiring[key]
        for item in entry.item_ids:
            if self._by_item.get((tenant, item)) == response_id:
                del self._by_item[tenant, item]
        share = self._shares[tenant]
        share.finished.pop(response_id, None)
        share.entries -= 1
        self._count(entry, -entry.counted)
        if not share.entries:
            del self._shares[tenant]
        return entry

    def expire(self) -> None:
        """Remove the finished responses whose time is over. All live equally long, so the oldest are first."""
        now = self._clock()
        while self._expiring:
            key = next(iter(self._expiring))
            entry = self._entries[key]
            if entry.expires > now:
                return
            if entry.is_final:
                self.remove(*key)
            else:
                entry.expires = now + self.limits.ttl
                self._expiring.move_to_end(key)

    def _make_room(self, tenant: str, size: int, entries: int) -> bool:
        limits = self.limits
        if size > limits.tenant_bytes:
            return False
        self.expire()
        while (share := self._shares.get(tenant)) is not None and (
            share.entries + entries > limits.tenant_entries or share.bytes + size > limits.tenant_bytes
        ):
            if not share.finished:
                return False
            self.remove(tenant, next(iter(share.finished)))
        while len(self._entries) + entries > limits.entries or self.bytes + size > limits.bytes:
            if not self._finished:
                return False
            self.remove(*next(iter(self._finished)))
        return True

    def _count(self, entry: StoredResponse, size: int) -> None:
        entry.counted += size
        self._shares[entry.tenant].bytes += size
        self.bytes += size


def _final(entry: StoredResponse, response: ResponseObject, data: bytes, run: BackgroundRun | None) -> StoredResponse:
    item_ids = (*entry.item_ids, *(item.id for item in response.output))
    return StoredResponse(entry.tenant, entry.id, entry.input_items, data, item_ids, is_final=True, run=run)


async def expire_regularly(store: ResponseStore) -> None:
    """Remove old responses also while there are no requests. Never returns."""
    while True:
        await asyncio.sleep(EXPIRY_SECONDS)
        store.expire()
