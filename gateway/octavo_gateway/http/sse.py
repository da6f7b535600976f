"""Cut a byte stream after whole server-sent events. Pure."""

from __future__ import annotations

# An event longer than this is passed on in pieces instead of being kept.
MAX_EVENT = 1024 * 1024


class EventCutter:
    """Gives out bytes only up to the end of an event, so that an error event can follow at any time.

    The bytes given out, in order, are the bytes fed.
    """

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, chunk: bytes) -> bytes:
        """The whole events there are with this chunk."""
        data = self._tail + chunk if self._tail else chunk
        end = max(data.rfind(b"\n\n") + 2, data.rfind(b"\r\n\r\n") + 4 if b"\r" in data else 0)
        if end < 4:
            end = len(data) if len(data) > MAX_EVENT else 0
        elif len(data) - end > MAX_EVENT:
            end = len(data)
        self._tail = data[end:]
        return data if end == len(data) else data[:end]

    def rest(self) -> bytes:
        """What is left when the stream is over."""
        tail, self._tail = self._tail, b""
        return tail
