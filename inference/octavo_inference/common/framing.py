"""Messages between processes of a server: MessagePack on a socket, each after its length, 4 bytes little-endian."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

LENGTH_BYTES = 4
MAX_FRAME = 256 * 2**20

_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: object) -> bytes:
    """A message as MessagePack, prefixed with its length."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


class FrameReader:
    """Splits a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes and yield the completed frames. Raises `ValueError` for a length above the limit."""
        self._buffer += data
        position = 0
        while len(self._buffer) - position >= LENGTH_BYTES:
            size = int.from_bytes(self._buffer[position : position + LENGTH_BYTES], "little")
            if size > MAX_FRAME:
                raise ValueError(f"a frame of {size} bytes; the limit is {MAX_FRAME}")
            end = position + LENGTH_BYTES + size
            if len(self._buffer) < end:
                break
            yield bytes(self._buffer[position + LENGTH_BYTES : end])
            position = end
        del self._buffer[:position]
