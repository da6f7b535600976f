"""Bounds the request bodies that are being read, decoded or tokenised at one time.

A body is counted while it arrives and until its request has its tokens, or has ended. The caller answers 503 for a body
that does not fit: an empty server would accept it. Decoded, a body can take ten times its bytes, so at most `PLACES`
large ones are decoded at one time; the others wait as bytes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable

MAX_BYTES = 32 * 2**20
LARGE_BODY = 256 * 1024
PLACES = 2


class Turns:
    """`places` for holders at one time. Waiting clients take turns, however much each of them wants."""

    def __init__(self, places: int = PLACES) -> None:
        self._free = places
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def enter(self, client: str) -> None:
        """Wait for a place. Each call that returns needs one `leave`."""
        if self._free:
            self._free -= 1
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # granted just before
                self.leave()
            raise

    def leave(self) -> None:
        """Give the place to the next one that waits."""
        while self._waiting:
            client = next(iter(self._waiting))
            queue = self._waiting.pop(client)
            granted = queue.popleft()
            if queue:
                self._waiting[client] = queue  # behind the other clients
            if not granted.done():
                granted.set_result(None)
                return
        self._free += 1


class Intake:
    """The bytes of all requests of a process. One client may hold half of `max_bytes`, so that others find room.

    `on_large` is called when a request gives a large body back, so that its memory can be returned to the system.
    """

    def __init__(
        self,
        max_bytes: int = MAX_BYTES,
        *,
        on_refusal: Callable[[], None] = lambda: None,
        on_large: Callable[[], None] = lambda: None,
    ) -> None:
        self.max_bytes = max_bytes
        self.on_large = on_large
        self.turns = Turns()
        self._on_refusal = on_refusal
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Bytes held now."""
        return self._held.total()

    def take(self, client: str, size: int) -> bool:
        """Count `size` bytes more for `client`. False if they do not fit."""
        if self.held + size > self.max_bytes or self._held[client] + size > self.max_bytes // 2:
            self._on_refusal()
            return False
        self._held[client] += size
        return True

    def give_back(self, client: str, size: int) -> None:
        """Count `size` bytes of `client` less."""
        self._held[client] -= size
        if not self._held[client]:
            del self._held[client]


class BodyReservation:
    """The bytes of one request, and its place among the large ones."""

    def __init__(self, intake: Intake, client: str) -> None:
        self.client = client
        self.size = 0
        self._intake = intake
        self._has_place = False

    def grow(self, size: int) -> bool:
        """Reserve `size` bytes more. False if they do not fit."""
        fits = self._intake.take(self.client, size)
        if fits:
            self.size += size
        return fits

    async def enter(self) -> bool:
        """Wait until the body may be decoded. Returns True."""
        if self.size >= LARGE_BODY:
            await self._intake.turns.enter(self.client)
            self._has_place = True
        return True

    def release(self) -> None:
        """Give bytes and place back; calling it again has no effect."""
        if self._has_place:
            self._has_place = False
            self._intake.turns.leave()
        if self.size:
            self._intake.give_back(self.client, self.size)
            if self.size >= LARGE_BODY:
                self._intake.on_large()
            self.size = 0
