"""The API process's side of the grammar process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys

import msgspec

from octavo_inference.common.framing import LENGTH_BYTES, encode_frame
from octavo_inference.common.memory_plan import resident_memory
from octavo_inference.server.grammars.messages import ModelTokens, Tried, Try

# Above the CPU time that `worker` allows: a busy machine gives it a part of a processor only.
WALL_SECONDS = 20.0
_START_SECONDS = 60.0
_MAX_REPLY = 1 << 20
_EXIT_SECONDS = 5.0


class GrammarProcessEndedError(Exception):
    """The process ended during a trial, or was killed. `reason` is a label; the message is for clients."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class GrammarProcess:
    """A child process that tries one grammar at a time. Use `start`."""

    def __init__(
        self, child: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._child = child
        self._reader = reader
        self._writer = writer
        self._is_fresh = True

    @classmethod
    async def start(cls, begin: ModelTokens) -> GrammarProcess:
        """Start a process for the tokens of a model. It takes about a second until it replies."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", "octavo_inference.server.grammars.worker", str(theirs.fileno())]
            child = await asyncio.to_thread(
                subprocess.Popen, command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        writer.write(await asyncio.to_thread(encode_frame, begin))
        return cls(child, reader, writer)

    @property
    def resident(self) -> int:
        """Resident bytes."""
        return resident_memory(self._child.pid)

    @property
    def is_alive(self) -> bool:
        """False once the process has ended."""
        return self._child.poll() is None

    async def trial(self, grammar: str) -> Tried:
        """Try a grammar. Raises `GrammarProcessEndedError` if that ends the process; then start another."""
        self._writer.write(encode_frame(Try(grammar=grammar)))
        # The first reply waits for the imports and the tokens, too.
        limit = WALL_SECONDS + (_START_SECONDS if self._is_fresh else 0)
        try:
            async with asyncio.timeout(limit):
                size = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "little")
                if size > _MAX_REPLY:
                    raise GrammarProcessEndedError("failed", "its process replied too much")
                frame = await self._reader.readexactly(size)
        except TimeoutError:
            raise GrammarProcessEndedError("busy", f"compiling did not end within {limit:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise _cause(await asyncio.to_thread(self._wait)) from None
        self._is_fresh = False
        return msgspec.msgpack.decode(frame, type=Tried)

    async def end(self) -> None:
        """End the process, whatever it does."""
        self._child.kill()
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        await asyncio.to_thread(self._child.wait)

    def _wait(self) -> int:
        try:
            return self._child.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()


def _cause(status: int) -> GrammarProcessEndedError:
    if status == -signal.SIGPROF:
        return GrammarProcessEndedError("time", "compiling took longer than 2 s; simplify the grammar")
    if status in {-signal.SIGABRT, -signal.SIGKILL}:
        return GrammarProcessEndedError("memory", "compiling needs more than 512 MiB of memory; simplify the grammar")
    if status in {-signal.SIGSEGV, -signal.SIGBUS}:
        return GrammarProcessEndedError("nesting", "it is nested too deeply to compile; simplify the grammar")
    return GrammarProcessEndedError("failed", f"the grammar process ended with status {status}")
