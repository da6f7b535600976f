"""Messages between ranks: MessagePack, framed as in `common.framing`, arrays as their shape and their bytes.

Rank 0 sends `Begin`, the rank replies `RankDevice`; rank 0 sends `Make`, the rank replies `Made`. Calls follow, without
replies. A rank may send `RankFailed` at any time, as its last message. Adapters have a connection of their own
(`adapter_transfer`); calls name them by their numbers.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from octavo_inference.common.framing import LENGTH_BYTES, FrameReader
from octavo_inference.config.engine import EngineSettings
from octavo_inference.core.kv_cache_sizing import CacheSizes
from octavo_inference.core.model_input import RowChange, RowStep

_RECEIVE_BYTES = 1 << 20


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """The settings to load, the digest that rank 0 computed, the rank of the peer, and its log format."""

    settings: EngineSettings
    digest: str
    rank: int
    log_format: Literal["text", "json"]


class RankDevice(msgspec.Struct, frozen=True, tag="found"):
    """The device of a rank. Memory in bytes."""

    name: str
    total: int
    free: int


class Make(msgspec.Struct, frozen=True, tag="make"):
    """Sizes, equal on all ranks."""

    sizes: CacheSizes


class Made(msgspec.Struct, frozen=True, tag="made"):
    """The rank is ready for calls."""


class RankFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The cause of the rank's end; `status` is the exit status for its replica."""

    message: str
    status: int


class Launch(msgspec.Struct, frozen=True, tag="launch"):
    """`Backend.launch`. The step is sent without its table, since each rank keeps a copy."""

    step: RowStep


class Choose(msgspec.Struct, frozen=True, tag="choose"):
    """`StepHandle.choose` of the last launched step."""

    masks: list[RowChange]


class CopyBlocks(msgspec.Struct, frozen=True, tag="copy"):
    """`Backend.copy_blocks`."""

    pairs: list[tuple[int, int]]


class ClearBlocks(msgspec.Struct, frozen=True, tag="clear"):
    """`Backend.clear_blocks`."""

    blocks: list[int]


class LoadAdapter(msgspec.Struct, frozen=True, tag="load adapter"):
    """`Backend.load_adapter` of the adapter with this number, which the rank has prepared; None to empty the slot."""

    slot: int
    number: int | None


class ForgetAdapter(msgspec.Struct, frozen=True, tag="forget adapter"):
    """Rank 0 has no use for the adapter with this number any more. Slots keep what they hold."""

    number: int


class Idle(msgspec.Struct, frozen=True, tag="idle"):
    """`Backend.idle`."""


Call = Launch | Choose | CopyBlocks | ClearBlocks | LoadAdapter | ForgetAdapter | Idle
ToRank = Begin | Make | Call
FromRank = RankDevice | Made | RankFailed


def encode(message: ToRank | FromRank) -> bytes:
    """Encode a message with its length prefix."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def _flatten(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    raise TypeError(f"{type(value).__name__} is not part of a message between ranks")


def _restore(kind: Any, value: Any) -> Any:
    """Decode an array of the field's declared type: NDArray[x] is ndarray[shape, dtype[x]]."""
    shape, data = value
    (dtype,) = get_args(get_args(kind)[1])
    return np.frombuffer(data, dtype).reshape(shape).copy()  # torch needs a writable buffer


_encoder = msgspec.msgpack.Encoder(enc_hook=_flatten)
decode_to_rank = msgspec.msgpack.Decoder(ToRank, dec_hook=_restore).decode
decode_from_rank = msgspec.msgpack.Decoder(FromRank, dec_hook=_restore).decode


class Reader:
    """Reads frames from a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = FrameReader()

    def read(self) -> Iterator[bytes]:
        """Frames completed by the next bytes, possibly none. Raises `EOFError` if the peer has closed."""
        try:
            data = self._connection.recv(_RECEIVE_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            raise EOFError
        return self._reader.feed(data)
