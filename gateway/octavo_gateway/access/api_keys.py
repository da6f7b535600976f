"""API keys: what each may do, and the digest by which it is known. Pure.

Keys are found by their digest in a hash table. That takes the same time for every wrong key as far as it matters: who
guesses keys cannot choose digests, so the time of a look-up tells nothing of the keys there are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from octavo_gateway.access.rate_limits import NO_LIMITS, RateLimits

# As the server's bounds of a request's `priority`.
MAX_PRIORITY = 10
_HASHED = re.compile(r"sha256:([0-9a-f]{64})\Z")


class KeyFileError(ValueError):
    """A key file that cannot be used: names the line and the field, never a key."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Who calls. `name` is for metrics and logs, empty for plain keys; `account` identifies whose limits are counted.

    `tenant` is opaque: what pods are told, and who shares fairly with others. `models`: patterns, None for all.
    `priority` is that of requests that name none, `max_priority` the highest. `expires`: Unix seconds.
    """

    name: str
    account: str
    tenant: str
    models: tuple[str, ...] | None = None
    limits: RateLimits = NO_LIMITS
    priority: int = 0
    max_priority: int = MAX_PRIORITY
    expires: float = float("inf")

    def may_use(self, names: tuple[str, ...]) -> bool:
        """Whether one of a model's names is among those allowed."""
        return self.models is None or any(fnmatchcase(name, pattern) for name in names for pattern in self.models)

    def priority_of(self, asked: object) -> int:
        """The priority of a request that asks for `asked`, as its body has it."""
        named = asked if isinstance(asked, int) and not isinstance(asked, bool) else self.priority
        return max(-MAX_PRIORITY, min(named, self.max_priority))


# Who calls a gateway without a key file.
ANYBODY = ApiKey("", "", "")


def digest_of(key: str) -> bytes:
    """SHA-256 of a key as a client sends it."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def opaque(kind: str, text: str) -> str:
    """A stable id that does not show what it stands for."""
    return hashlib.sha256(f"octavo {kind}\0{text}".encode()).hexdigest()[:16]


def hashed(key: str) -> bytes:
    """The digest of a key as it stands in the file: the key, or `sha256:` and its digest."""
    given = _HASHED.match(key)
    return bytes.fromhex(given[1]) if given else digest_of(key)


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key a client sent, as `Authorization: Bearer KEY` or `x-api-key: KEY`."""
    scheme, _, value = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("X-Api-Key")
