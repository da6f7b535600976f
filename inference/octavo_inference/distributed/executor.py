"""Rank 0's side of its group: starts the other ranks, sends them every call, and ends when any of them ends."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn, TypeVar

from octavo_common import json_logs
from octavo_inference.common.errors import DeviceLostError, RankLostError
from octavo_inference.common.process import EXIT_RANK_LOST
from octavo_inference.config.engine import EngineSettings
from octavo_inference.core.kv_cache_sizing import CacheSizes
from octavo_inference.distributed.adapter_sender import AdapterLink
from octavo_inference.distributed.messages import (
    Begin,
    Call,
    Made,
    Make,
    RankDevice,
    RankFailed,
    Reader,
    decode_from_rank,
    encode,
)

log = logging.getLogger(__name__)

End = Callable[[str, int], NoReturn]
"""Ends this process from any thread, in any state. Arguments: a sentence with the cause, and the exit status."""

Answer = TypeVar("Answer", RankDevice, Made)

_SOCKET_BUFFER = 1 << 20
# A process with a closed socket is about to exit.
_EXIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Peer:
    rank: int
    process: subprocess.Popen[bytes]
    connection: socket.socket
    adapters: socket.socket
    answers: SimpleQueue[RankDevice | Made] = field(default_factory=SimpleQueue)

    @property
    def name(self) -> str:
        return f"tensor-parallel rank {self.rank} (pid {self.process.pid})"

    def exit_reason(self) -> str:
        """A sentence on how the process ended; for a process with a closed socket."""
        try:
            status = self.process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return f"{self.name} closed its connection"
        return (
            f"{self.name} was killed by signal {-status}" if status < 0 else f"{self.name} ended with status {status}"
        )


class RankExecutor:
    """Ranks 1 to `size` - 1, child processes of this process, which is rank 0.

    A watcher thread calls `end` as soon as one of them has ended, since this process may be waiting for it in a
    collective. The children end with this process, however it ends.
    """

    def __init__(self, size: int, end: End) -> None:
        self.size = size
        self.folder = Path(tempfile.mkdtemp(prefix="octavo-ranks-"))
        """Folder of the rendezvous, accessible to this user only."""
        self._end = end
        self._closing = False
        self._peers = [_start(rank, self.folder) for rank in range(1, size)]
        self._watcher = threading.Thread(target=self._watch, name="octavo-ranks", daemon=True)
        self._watcher.start()
        atexit.register(self.close)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of ranks 1 and up."""
        return tuple(peer.process.pid for peer in self._peers)

    @property
    def adapter_links(self) -> list[AdapterLink]:
        """The connections for adapters to ranks 1 and up."""
        return [AdapterLink(peer.name, peer.adapters) for peer in self._peers]

    def begin(self, settings: EngineSettings, digest: str) -> None:
        """Make every rank read the model, check it against `digest`, find its device and join the group."""
        for peer in self._peers:
            begin = Begin(settings=settings, digest=digest, rank=peer.rank, log_format=json_logs.form())
            self._send(peer, encode(begin))

    def found(self) -> list[RankDevice]:
        """The devices of ranks 1 and up."""
        return [self._answer(peer, RankDevice) for peer in self._peers]

    def make(self, sizes: CacheSizes) -> None:
        """Make every rank load its shard. The load waits for rank 0 to do the same."""
        self.send_all(Make(sizes=sizes))

    def made(self) -> None:
        """Wait until every rank is ready for calls."""
        for peer in self._peers:
            self._answer(peer, Made)

    def send_all(self, call: Make | Call) -> None:
        """Send a call to every rank. Raises `RankLostError`."""
        frame = encode(call)
        for peer in self._peers:
            self._send(peer, frame)

    @contextlib.contextmanager
    def in_step(self) -> Generator[None]:
        """Context of rank 0's part of a call sent to all ranks. A failure in it puts the ranks out of step for good.

        Raises `RankLostError` for any exception.
        """
        try:
            yield
        except DeviceLostError:
            raise
        except Exception as error:
            # If another rank has ended, the watcher ends this process once it has that rank's exit status.
            self._watcher.join(2 * _EXIT_SECONDS)
            log.exception("rank 0 failed")
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise RankLostError(
                f"tensor-parallel rank 0 (pid {os.getpid()}) failed in a step and is out of step with the others: "
                f"{first}"
            ) from error

    def close(self) -> None:
        """End the other ranks."""
        self._closing = True
        for peer in self._peers:
            for connection in (peer.connection, peer.adapters):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._watcher.join()
        for peer in self._peers:
            try:
                peer.process.wait(_EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                peer.process.kill()
                peer.process.wait()
            peer.connection.close()
            peer.adapters.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.close)

    def _send(self, peer: _Peer, frame: bytes) -> None:
        try:
            peer.connection.sendall(frame)
        except OSError as error:
            self._watcher.join(2 * _EXIT_SECONDS)
            raise RankLostError(peer.exit_reason()) from error

    def _answer(self, peer: _Peer, kind: type[Answer]) -> Answer:
        # The watcher ends this process if the rank ends before its reply.
        answer = peer.answers.get()
        if not isinstance(answer, kind):
            raise RankLostError(f"{peer.name} answered {answer} instead of {kind.__name__}")
        return answer

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for peer in self._peers:
                selector.register(peer.connection, selectors.EVENT_READ, (peer, Reader(peer.connection)))
            while not self._closing:
                for key, _ in selector.select():
                    peer, reader = key.data
                    self._receive(peer, reader)

    def _receive(self, peer: _Peer, reader: Reader) -> None:
        try:
            for frame in reader.read():
                message = decode_from_rank(frame)
                if isinstance(message, RankFailed):
                    self._finish(f"{peer.name}: {message.message}", message.status)
                else:
                    peer.answers.put(message)
        except EOFError:
            if not self._closing:
                self._finish(peer.exit_reason(), EXIT_RANK_LOST)

    def _finish(self, message: str, status: int) -> NoReturn:
        for peer in self._peers:
            peer.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._end(message, status)


def end_process(message: str, status: int) -> NoReturn:
    """End a process that has no peer to notify: writes one line to stderr."""
    sys.stderr.write(f"octavo: {message}\n")
    sys.stderr.flush()
    os._exit(status)


def _start(rank: int, folder: Path) -> _Peer:
    (ours, theirs), (our_adapters, their_adapters) = socket.socketpair(), socket.socketpair()
    for end in (ours, theirs, our_adapters, their_adapters):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
    passed = [theirs.fileno(), their_adapters.fileno()]
    # -P: do not import modules from the working directory.
    command = [sys.executable, "-P", "-m", "octavo_inference.distributed.worker", *map(str, passed), str(folder)]
    process = subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL)
    theirs.close()
    their_adapters.close()
    return _Peer(rank, process, ours, our_adapters)
