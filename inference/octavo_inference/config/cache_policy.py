"""Retention of prefix cache blocks per kind of work: for how long, and how many.

A conversation continues after minutes or hours with its full history as prefix. Calls of a program share a prefix for
as long as the program runs. A batch job shares a prefix while it runs and never returns.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo_protocol.engine_settings import PolicyName

__all__ = ["POLICIES", "CachePolicy", "PolicyName"]


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """`seconds` from last use to expiry; `share` of the pool that unused blocks of this kind may take."""

    seconds: float
    share: float


POLICIES: dict[PolicyName, CachePolicy] = {
    "chat": CachePolicy(24 * 3600, 1.0),
    "api": CachePolicy(3600, 0.5),
    "batch": CachePolicy(360, 0.1),
}
