"""Remembers which replica stores which response of the Responses API. Pure.

A stored response is in the memory of the replica that generated it. A tag in its id is a hash of the replica's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b

from octavo_gateway.discovery.endpoints import Key
from octavo_gateway.routing.prefix_chain import root
from octavo_gateway.routing.recent_map import RecentMap

# At about 300 bytes each.
MOST_RESPONSES = 65_536
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class StoredAt:
    """The place of a stored response: the LLMDeployment's key, and the replica's name and address."""

    deployment: Key
    replica: str
    url: str


@dataclass(slots=True)
class StoredResponses:
    """Places of the most recent stored responses, by tenant and id. One tenant's ids do not exist for another."""

    limit: int = MOST_RESPONSES
    _places: RecentMap[StoredAt] = field(init=False)

    def __post_init__(self) -> None:
        self._places = RecentMap(self.limit)

    def __len__(self) -> int:
        return len(self._places)

    def learn(self, tenant: str, response: str, place: StoredAt) -> None:
        """Record the place of a response."""
        if is_response_id(response):
            self._places.fill([(_key(tenant, response), place)])

    def find(self, tenant: str, response: str) -> StoredAt | None:
        """The place of a response; None if unknown."""
        return self._places.get(_key(tenant, response))


def is_response_id(text: object) -> bool:
    """True if a replica may have made this id. Others need no search, and never become part of a path."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def _key(tenant: str, response: str) -> bytes:
    return blake2b(root(tenant) + response.encode("utf-8", "replace"), digest_size=16).digest()
