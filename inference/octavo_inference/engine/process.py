"""The engine process: `python -m octavo_inference.engine.process FD`, started by `client`.

The engine does not share an interpreter with the HTTP server. The GIL of a busy HTTP loop starves the step loop
(measured: 438 to 2.6 tokens/s). FD is one end of a socket pair. It has no path and no name, so no other process can
connect. An idle engine process waits in `select` and uses no CPU. Between steps it takes the messages that have arrived
without waiting. When the API process ends, `recv` returns no bytes and this process ends, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import gc
import importlib
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from octavo_common import json_logs
from octavo_inference.common.allocator import trim
from octavo_inference.common.errors import DeviceLostError, OctavoError, RankLostError
from octavo_inference.common.framing import FrameReader, encode_frame
from octavo_inference.common.memory_plan import resident_memory
from octavo_inference.common.parent_watchdog import live_with
from octavo_inference.common.process import DUMP_SIGNAL, EXIT_CORRUPT, EXIT_DEVICE_LOST, EXIT_RANK_LOST
from octavo_inference.common.timeline import Timeline
from octavo_inference.config.engine import PROFILES, EngineSettings
from octavo_inference.core.block_pool import PoolError
from octavo_inference.core.request import ResetCache, SleepEngine, WakeEngine
from octavo_inference.distributed.executor import End
from octavo_inference.engine.ipc import (
    Asleep,
    EngineFailure,
    EngineInfo,
    ReadStepTimes,
    Ready,
    ToEngine,
    decode_start,
    decode_to_engine,
)
from octavo_inference.engine.loop import EngineLoop
from octavo_protocol.server_settings import ServerSettings

if TYPE_CHECKING:  # its other imports run while the model is read
    from octavo_inference.core.engine import Engine

_RECEIVE_BYTES = 1 << 20
_FAILURE_SECONDS = 2.0
log = logging.getLogger("octavo.engine")

Loader = Callable[[ServerSettings], "tuple[Engine, EngineInfo]"]


class _PeerGoneError(Exception):
    pass


class Channel:
    """The engine's end of the socket pair."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = FrameReader()
        self._sending = threading.Lock()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def receive(self, wait: float | None) -> list[bytes]:
        """Frames that have arrived, in order. Waits up to `wait` seconds if there are none, without limit if None.

        Also returns after `wake`. Raises when the peer has closed.
        """
        frames: list[bytes] = []
        if wait != 0:
            watched: list[socket.socket | int] = [self._connection, self._woken]
            ready, _, _ = select.select(watched, [], [], wait)
            if self._woken in ready:
                os.eventfd_read(self._woken)
        while True:
            try:
                data = self._connection.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return frames
            except ConnectionResetError:
                raise _PeerGoneError from None
            if not data:
                raise _PeerGoneError
            frames += self._reader.feed(data)

    def fileno(self) -> int:
        """File descriptor of the socket: readable when a message has arrived, or the peer has closed."""
        return self._connection.fileno()

    def wake(self) -> None:
        """Let `receive` return, from any thread: now, or its next wait."""
        os.eventfd_write(self._woken, 1)

    def send(self, frame: bytes) -> None:
        """Send a whole frame; blocks while the peer does not read."""
        try:
            with self._sending:
                self._connection.sendall(frame)
        except (BrokenPipeError, ConnectionResetError):
            raise _PeerGoneError from None

    def end(self, message: str, status: int) -> NoReturn:
        """Log the cause, send it to the peer and end this process, from any thread and regardless of the others."""
        log.error("%s", message)
        # A concurrent send by another thread finishes soon, or the peer does not read at all.
        if self._sending.acquire(timeout=_FAILURE_SECONDS):
            with contextlib.suppress(OSError):
                self._connection.sendall(encode_frame(EngineFailure(message=message, status=status)))
        os._exit(status)


def serve(channel: Channel, load: Loader, prepare: Callable[[], object] = lambda: None) -> int:
    """Load the engine that the peer requests and run it until the peer closes. Returns the exit status.

    `prepare` needs no settings and runs before they arrive.
    """
    try:
        prepare()
        _load_and_run(channel, load)
    except _PeerGoneError:
        return 0
    except RankLostError as error:
        _send_failure(channel, str(error), EXIT_RANK_LOST)
        return EXIT_RANK_LOST
    except DeviceLostError as error:
        log.exception("the GPU is lost")
        _send_failure(channel, str(error), EXIT_DEVICE_LOST)
        return EXIT_DEVICE_LOST
    except OctavoError as error:
        _send_failure(channel, str(error))
    except PoolError as error:
        log.exception("KV block accounting is inconsistent")
        _send_failure(channel, f"KV block accounting is inconsistent, so answers could mix: {error}", EXIT_CORRUPT)
        return EXIT_CORRUPT
    except Exception as error:
        # An unexpected error: the peer gets one line, the log the traceback.
        log.exception("the engine failed")
        _send_failure(channel, f"{type(error).__name__}: {error}")
    return 1


def _load_and_run(channel: Channel, load: Loader) -> NoReturn:
    first, *frames = channel.receive(None)
    settings = decode_start(first).settings
    while True:
        info, frames = _load_and_run_until_sleep(channel, load, settings, frames)
        _release()
        channel.send(encode_frame(Asleep(resident=resident_memory(os.getpid()))))
        frames = _wait_for_wake(channel, frames)
        settings = _same_sizes(settings, info)


def _load_and_run_until_sleep(
    channel: Channel, load: Loader, settings: ServerSettings, frames: list[bytes]
) -> tuple[EngineInfo, list[bytes]]:
    # The engine is local to this function, so nothing holds its memory after the return.
    engine, info = load(settings)
    if engine.grammar_compiler is not None:
        engine.grammar_compiler.on_ready = channel.wake
    engine.adapters.on_ready = channel.wake
    engine.message_fd = channel.fileno()
    channel.send(encode_frame(Ready(info=info, stats=engine.stats())))
    try:
        return info, _run(EngineLoop(engine), channel, frames)
    finally:
        engine.adapters.close()


def _release() -> None:
    """Return the memory of an engine that is not referenced any more to the system."""
    gc.unfreeze()
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim()


def _wait_for_wake(channel: Channel, frames: list[bytes]) -> list[bytes]:
    while True:
        for number, frame in enumerate(frames):
            if any(isinstance(message, WakeEngine) for message in decode_to_engine(frame)):
                return frames[number + 1 :]
        frames = channel.receive(None)


def _same_sizes(settings: ServerSettings, info: EngineInfo) -> ServerSettings:
    """Settings that load an engine with the sizes of the one before, whatever memory is available now."""
    sizes = dataclasses.replace(
        settings.engine,
        max_model_len=info.max_model_len,
        kv_memory=info.kv_bytes or None,
        kv_memory_percent=None,
        swap_memory=info.swap_bytes or None,
        max_running_requests=info.max_running_requests,
        max_batched_tokens=info.max_batched_tokens,
    )
    return dataclasses.replace(settings, engine=sizes)


def _send_failure(channel: Channel, message: str, status: int = 1) -> None:
    with contextlib.suppress(_PeerGoneError):
        channel.send(encode_frame(EngineFailure(message=message, status=status)))


def _run(loop: EngineLoop, channel: Channel, frames: list[bytes]) -> list[bytes]:
    """Run until the peer closes, which raises, or sends `SleepEngine`. Returns the frames after that one."""
    due = False
    while True:
        messages: list[ToEngine] = [message for frame in frames for message in decode_to_engine(frame)]
        if any(isinstance(message, ReadStepTimes) for message in messages):
            channel.send(encode_frame(loop.step_times()))
        if any(isinstance(message, SleepEngine) for message in messages):
            # Readers of the load report learn that the cache is empty.
            channel.send(encode_frame(loop.run_once([ResetCache()])))
            return []
        if messages or due or loop.poll_timeout() == 0:
            channel.send(encode_frame(loop.run_once(messages)))
        timeout = loop.poll_timeout()
        due = timeout is not None
        if timeout is None:
            timeout = loop.on_idle()
        frames = channel.receive(timeout)


def engine_settings(settings: ServerSettings) -> EngineSettings:
    """The engine settings of a server, which bound how much prefill slows down running answers."""
    engine = settings.engine
    slowdown = engine.prefill_slowdown or PROFILES[engine.profile].prefill_slowdown
    return dataclasses.replace(engine, prefill_slowdown=slowdown)


def load_model(settings: ServerSettings, end: End) -> tuple[Engine, EngineInfo]:
    """Load the real engine; see `octavo_inference.engine.factory`, also for `end`."""
    json_logs.configure(settings.log_format)
    timeline = Timeline.of_process()
    imported = timeline.now()
    from octavo_inference.engine.factory import load_engine  # noqa: PLC0415

    loaded = load_engine(engine_settings(settings), end=end)
    # Objects loaded so far are permanent: the garbage collector need not traverse them again.
    gc.freeze()
    gc.enable()
    limits, backend = loaded.engine.limits, loaded.engine.backend
    phases = [("imports", imported), ("weights and kernels", timeline.now() - imported - loaded.capture_seconds)]
    if loaded.captured:
        phases.append((f"{loaded.captured} CUDA graphs", loaded.capture_seconds))
    info = EngineInfo(
        backend=backend.name,
        max_model_len=limits.max_model_len,
        vocab_size=loaded.engine.config.own_vocab,
        added_ids=loaded.engine.config.added_ids,
        block_size=backend.block_size,
        num_blocks=backend.num_blocks,
        kv_bytes=loaded.settings.kv_memory or 0,
        max_running_requests=limits.max_running,
        max_batched_tokens=limits.max_batched_tokens,
        threads=loaded.settings.threads or 0,
        profile=settings.engine.profile,
        batching=settings.engine.batching,
        prefill_slowdown=limits.prefill_slowdown or 0.0,
        preemption=settings.engine.preemption,
        cache_policy=settings.engine.cache_policy,
        prefix_caching=limits.prefix_caching,
        overlap=loaded.engine.overlaps,
        cuda_graphs=loaded.captured,
        model_digest=loaded.engine.config.digest,
        hidden_size=loaded.engine.embedding_size,
        task=loaded.engine.config.task,
        pooling=loaded.engine.config.pooling,
        swap_bytes=loaded.settings.swap_memory or 0,
        adapter_slots=backend.adapter_slots,
        memory=loaded.memory,
        pid=os.getpid(),
        rank_pids=loaded.rank_pids,
        phases=tuple(phases),
    )
    return loaded.engine, info


def main() -> NoReturn:
    """Entry point."""
    faulthandler.enable()
    faulthandler.register(DUMP_SIGNAL, all_threads=True)
    # The API process decides when to end: SIGINT or SIGTERM to the process group must not cut off running answers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # No object made during loading becomes garbage, so a collection only costs time.
    gc.disable()
    connection = socket.socket(fileno=int(sys.argv[1]))
    live_with(connection)
    channel = Channel(connection)
    status = serve(channel, partial(load_model, end=channel.end), _prepare)
    # There is no state to save, and exit handlers of libraries may wait for devices and processes that are lost.
    logging.shutdown()
    os._exit(status)


def _prepare() -> None:
    # numpy and the engine: most of this process's imports, run while the API process still reads its settings.
    importlib.import_module("octavo_inference.engine.factory")


if __name__ == "__main__":
    main()
