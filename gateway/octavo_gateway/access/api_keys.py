"""API keys: the permissions of each key, and the digest that identifies it. Pure.

A hash table finds keys by their digest. An attacker who guesses keys cannot choose digests, so the time of a look-up
reveals nothing about existing keys.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from octavo_gateway.access.rate_limits import NO_LIMITS, RateLimits

# The server has the same bound for a request's `priority`.
MAX_PRIORITY = 10
_HASHED = re.compile(r"sha256:([0-9a-f]{64})\Z")


class KeyFileError(ValueError):
    """An invalid key file. The message names the line and the field, never a key."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The caller. `name` is for metrics and logs, empty for plain keys. `account`: id under which limits are counted.

    `tenant`: opaque id that pods receive, and the unit of fair sharing. `models`: patterns, None for all. `priority` is
    the default of a request, `max_priority` its maximum. `expires`: Unix seconds.
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
        """True if one of a model's names is allowed."""
        return self.models is None or any(fnmatchcase(name, pattern) for name in names for pattern in self.models)

    def priority_of(self, asked: object) -> int:
        """The priority of a request, bounded. `asked`: the value in its body."""
        named = asked if isinstance(asked, int) and not isinstance(asked, bool) else self.priority
        return max(-MAX_PRIORITY, min(named, self.max_priority))


# The caller of a gateway without a key file.
ANYBODY = ApiKey("", "", "")


def digest_of(key: str) -> bytes:
    """SHA-256 of a key as a client sends it."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def opaque(kind: str, text: str) -> str:
    """A stable id that does not reveal `text`."""
    return hashlib.sha256(f"octavo {kind}\0{text}".encode()).hexdigest()[:16]


def hashed(key: str) -> bytes:
    """The digest of a key in the form of the file: the key itself, or `sha256:` and its digest."""
    given = _HASHED.match(key)
    return bytes.fromhex(given[1]) if given else digest_of(key)


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key of a request, from `Authorization: Bearer KEY` or `x-api-key: KEY`."""
    scheme, _, value = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("X-Api-Key")
