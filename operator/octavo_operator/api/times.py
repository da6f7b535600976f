"""Times as API objects spell them."""

from __future__ import annotations

from datetime import UTC, datetime


def seconds(time: str | None) -> float | None:
    """Unix seconds of an RFC 3339 time."""
    return datetime.fromisoformat(time).timestamp() if time else None


def rfc3339(now: float) -> str:
    """A Unix time as API objects spell it, in whole seconds."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
