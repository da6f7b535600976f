"""Cuts a byte stream after whole server-sent events. Pure."""

from __future__ import annotations

# An event longer than this is forwarded in pieces instead of buffered.
MAX_EVENT = 1024 * 1024


class EventCutter:
    """Returns bytes only up to the end of an event, so that an error event can follow at any time.

    The returned bytes, in order, are the bytes fed.
    """

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, chunk: bytes) -> bytes:
        """The whole events that are complete with this chunk."""
        data = self._tail + chunk if self._tail else chunk
        end = max(data.rfind(b"\n\n") + 2, data.rfind(b"\r\n\r\n") + 4 if b"\r" in data else 0)
        if end < 4:
            end = len(data) if len(data) > MAX_EVENT else 0
        elif len(data) - end > MAX_EVENT:
            end = len(data)
        self._tail = data[end:]
        return data if end == len(data) else data[:end]

    def rest(self) -> bytes:
        """The remaining bytes at the end of the stream."""
        tail, self._tail = self._tail, b""
        return tail
