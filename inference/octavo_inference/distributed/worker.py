"""A rank above 0: `python -m octavo_inference.distributed.worker FD ADAPTERS FOLDER`, started by `executor`.

FD and ADAPTERS are ends of socket pairs, for calls and for adapters, FOLDER that of the rendezvous. The process loads
its shard of the model and runs every call that rank 0 runs. Idle, it blocks in `recv` and uses no CPU.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import logging
import os
import select
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from octavo_common import json_logs
from octavo_common.failpoints import Failpoints
from octavo_inference.common.errors import DeviceLostError, ModelError, OctavoError
from octavo_inference.common.parent_watchdog import live_with
from octavo_inference.common.process import DUMP_SIGNAL, EXIT_RANK_LOST
from octavo_inference.core.backend import Backend, StepHandle
from octavo_inference.distributed.messages import (
    Begin,
    Choose,
    ClearBlocks,
    CopyBlocks,
    ForgetAdapter,
    FromRank,
    Idle,
    Launch,
    LoadAdapter,
    Made,
    Make,
    RankDevice,
    RankFailed,
    Reader,
    ToRank,
    decode_to_rank,
    encode,
)
from octavo_inference.distributed.rank_adapters import RankAdapters
from octavo_inference.model_loader import ForeignModel, load_model

log = logging.getLogger("octavo.rank")

# A step is collected once the next one is launched, or after this many seconds without a call, to detect its errors.
_QUIET_SECONDS = 0.1


class Inbox:
    """Messages of rank 0 in order."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = Reader(connection)
        self._frames: deque[bytes] = deque()

    def next(self) -> ToRank:
        """Wait for the next message and return it. Raises `EOFError` when rank 0 has ended."""
        while not self._frames:
            self._frames.extend(self._reader.read())
        message: ToRank = decode_to_rank(self._frames.popleft())
        return message

    def quiet(self, seconds: float) -> bool:
        """True if no message arrives within this time."""
        return not self._frames and not select.select([self._connection], [], [], seconds)[0]


def serve(connection: socket.socket, adapter_connection: socket.socket, folder: Path) -> int:
    """Run as a rank until rank 0 ends. `folder` is that of the rendezvous. Returns the exit status."""
    inbox, failpoints = Inbox(connection), Failpoints.from_environment()

    def answer(message: FromRank) -> None:
        connection.sendall(encode(message))

    made = False
    try:
        backend = _load(inbox, answer, folder)
        adapters = RankAdapters(backend, adapter_connection, failpoints, partial(_end, answer))
        if backend.adapter_slots:
            adapters.start()
        gc.freeze()
        gc.enable()
        answer(Made())
        made = True
        follow(backend, inbox, failpoints, adapters)
    except (EOFError, BrokenPipeError):
        return 0
    except Exception as error:  # noqa: BLE001 -- `_failed` logs it
        # A failed start is reported as on one GPU. A failure while serving has the exit status of a lost rank.
        refused = not made and not isinstance(error, DeviceLostError)
        return _failed(answer, error, 1 if refused else EXIT_RANK_LOST)


def _failed(answer: Callable[[FromRank], None], error: Exception, status: int) -> int:
    """Tell rank 0 why this rank ends. Returns the exit status."""
    known = isinstance(error, OctavoError)
    if not known:
        log.error("the rank failed", exc_info=error)
    first = (str(error).strip().splitlines() or ["no reason given"])[0]
    message = str(error) if known else f"{type(error).__name__}: {first}"
    try:
        answer(RankFailed(message=message, status=status))
    except OSError:
        log.error("%s", message)  # noqa: TRY400 -- `error` matters, not the failed send
    return status


def _end(answer: Callable[[FromRank], None], error: Exception) -> NoReturn:
    """End the process from any thread, and with it all ranks."""
    status = _failed(answer, error, EXIT_RANK_LOST)
    logging.shutdown()
    os._exit(status)


def follow(backend: Backend, inbox: Inbox, failpoints: Failpoints, adapters: RankAdapters) -> NoReturn:
    """Run the calls of rank 0, in order. Raises `EOFError` when rank 0 has ended, else the exception of a call."""
    launched: deque[StepHandle] = deque()
    choosing = False  # the last step waits for its masks
    while True:
        while launched and not choosing and inbox.quiet(_QUIET_SECONDS):
            launched.popleft().collect()
        call = inbox.next()
        failpoints.hit("rank.call")
        if isinstance(call, Launch):
            launched.append(backend.launch(call.step))
            choosing = call.step.guided
            if len(launched) > 1:
                launched.popleft().collect()
        elif isinstance(call, Choose):
            launched[-1].choose(call.masks)
            choosing = False
        elif isinstance(call, CopyBlocks):
            backend.copy_blocks(call.pairs)
        elif isinstance(call, ClearBlocks):
            backend.clear_blocks(call.blocks)
        elif isinstance(call, LoadAdapter):
            adapters.load(call.slot, call.number)
        elif isinstance(call, ForgetAdapter):
            adapters.forget(call.number)
        elif isinstance(call, Idle):
            backend.idle()
        else:
            raise TypeError(f"{type(call).__name__} is not a call")


def _load(inbox: Inbox, answer: Callable[[FromRank], None], folder: Path) -> Backend:
    begin = inbox.next()
    if not isinstance(begin, Begin):
        raise TypeError(f"{type(begin).__name__} before begin")
    json_logs.configure(begin.log_format)
    from octavo_inference.backends.cuda.factory import build_rank  # noqa: PLC0415 -- torch, already imported
    from octavo_inference.distributed.rendezvous import enter  # noqa: PLC0415

    settings = begin.settings
    model = load_model(settings.model)
    if isinstance(model, ForeignModel) or model.config.digest != begin.digest:
        raise ModelError(f"{settings.model} differs from what rank 0 read; do not change its files while it loads")
    group, device = enter(begin.rank, settings.tensor_parallel_size, folder)
    answer(RankDevice(name=device.name, total=device.total, free=device.free))
    make = inbox.next()
    if not isinstance(make, Make):
        raise TypeError(f"{type(make).__name__} before make")
    return build_rank(settings, model.for_adapters(settings), device, group, make.sizes)


def main() -> NoReturn:
    """Entry point."""
    faulthandler.enable()
    faulthandler.register(DUMP_SIGNAL, all_threads=True)
    # Rank 0 decides when to end: a signal to the process group must not cut off running answers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.disable()
    connection, adapter_connection = (socket.socket(fileno=int(sys.argv[place])) for place in (1, 2))
    folder = Path(sys.argv[3])
    live_with(connection, lambda: shutil.rmtree(folder, ignore_errors=True))
    # Most of its imports, run while rank 0 still reads the model's header.
    importlib.import_module("octavo_inference.backends.cuda.factory")
    status = serve(connection, adapter_connection, folder)
    # As in the engine process, there is no state to save.
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    main()
