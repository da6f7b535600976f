"""What the API process and the engine process say to each other, and how it is framed on their socket.

MessagePack, each frame preceded by its length as 4 bytes little-endian. The API process sends `Start` once and then
lists of `Request | Abort | ResetCache`; the engine process answers `Ready` once and then a `Step` per step, or
`Failure` and exits.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import msgspec

from octavo_inference.common.memory_plan import MemoryPlan
from octavo_inference.config.server import Settings
from octavo_inference.core.request import Abort, Output, Request, ResetCache
from octavo_protocol.load import LoadReport

LENGTH_BYTES = 4
MAX_FRAME = 256 * 2**20
DUMP_SIGNAL = signal.SIGUSR1
"""Makes an engine process write the stacks of its threads to stderr, also while it hangs."""


EXIT_CORRUPT = 71
"""Exit status of an engine whose books are wrong, and of its server: better no answers than someone else's."""

EXIT_DEVICE_LOST = 72
"""Exit status of an engine whose GPU failed for good, and of its server: nothing it could still say would be true."""

EXIT_RANK_LOST = 73
"""Exit status of an engine that lost one of the processes it shares its model with, and of its server."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine process loads."""

    settings: Settings


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine made of the settings. Sizes in tokens or bytes; `phases` are (name, seconds).

    With a model that is spread over several GPUs, sizes in bytes are those of each, `pid` is rank 0 and `rank_pids` are
    the others.
    """

    backend: str
    max_model_len: int
    vocab_size: int
    block_size: int
    num_blocks: int
    kv_bytes: int
    max_running_requests: int
    max_batched_tokens: int
    threads: int
    profile: str = "balanced"
    batching: str = "continuous"
    prefill_slowdown: float = 1.5
    preemption: str = "recompute"
    cache_policy: str = "chat"
    prefix_caching: bool = True
    overlap: bool = False
    cuda_graphs: int = 0
    model_digest: str = ""
    swap_bytes: int = 0
    memory: MemoryPlan | None = None
    pid: int = 0
    rank_pids: tuple[int, ...] = ()
    phases: tuple[tuple[str, float], ...] = ()


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The model is loaded and steps can run."""

    info: EngineInfo
    report: LoadReport


class Step(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """One turn of the engine: what came out, and its state afterwards. `heartbeat` grows with every turn.

    `known`, `forgotten`: keys (`octavo_protocol.hashing.keys`) of blocks that the prefix cache finds since, or no more.
    """

    heartbeat: int
    outputs: list[Output]
    report: LoadReport
    known: bytes = b""
    forgotten: bytes = b""


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """Last words of an engine process; `message` is for people, `status` the exit status the server is to end with."""

    message: str
    status: int = 1


FromEngine = Ready | Step | Failure
ToEngine = list[Request | Abort | ResetCache]

_encoder = msgspec.msgpack.Encoder()
decode_start = msgspec.msgpack.Decoder(Start).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode


def encode_frame(message: Any) -> bytes:
    """A message with its length in front."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes, yield the frames completed by them. Raises `ValueError` for a length no peer of ours sends."""
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
