"""Bounds the bytes of request bodies that are being read, decoded or tokenised at one time.

A body is counted while it arrives and until its request has its tokens, or has ended. A body that does not fit is a
503: an empty server would accept it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from octavo_inference.server.errors import intake_full

MAX_BYTES = 32 * 2**20


class Intake:
    """The bytes of all requests of a process. One client may hold half of `max_bytes`, so that others find room.

    `turn` is held while a large body is decoded: decoding blocks the event loop, and between two of them the loop
    answers others.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, on_refusal: Callable[[], None] = lambda: None) -> None:
        self.max_bytes = max_bytes
        self.turn = asyncio.Lock()
        self._on_refusal = on_refusal
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Bytes held now."""
        return self._held.total()

    def take(self, client: str, size: int) -> None:
        """Count `size` bytes more for `client`. Raises `ApiError` 503 if they do not fit."""
        if self.held + size > self.max_bytes or self._held[client] + size > self.max_bytes // 2:
            self._on_refusal()
            raise intake_full()
        self._held[client] += size

    def give_back(self, client: str, size: int) -> None:
        """Count `size` bytes of `client` less."""
        self._held[client] -= size
        if not self._held[client]:
            del self._held[client]


class Reservation:
    """The bytes of one request."""

    def __init__(self, intake: Intake, client: str) -> None:
        self.intake = intake
        self.client = client
        self.size = 0

    def grow(self, size: int) -> None:
        """Reserve `size` bytes more. Raises `ApiError` 503."""
        self.intake.take(self.client, size)
        self.size += size

    def release(self) -> None:
        """Give all bytes back; calling it again has no effect."""
        if self.size:
            self.intake.give_back(self.client, self.size)
            self.size = 0
