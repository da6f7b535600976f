"""How long the prefix cache keeps what a request leaves, and how much of it, per kind of work.

A conversation comes back after minutes or hours with all it said before; calls of a program share a beginning for as
long as the program runs; a batch job shares it while it runs and never comes back.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo_protocol.engine_settings import PolicyName

__all__ = ["POLICIES", "CachePolicy", "PolicyName"]


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """`seconds` from last use to the end; `share` of the pool that blocks of this kind may take while unused."""

    seconds: float
    share: float


POLICIES: dict[PolicyName, CachePolicy] = {
    "chat": CachePolicy(24 * 3600, 1.0),
    "api": CachePolicy(3600, 0.5),
    "batch": CachePolicy(360, 0.1),
}
