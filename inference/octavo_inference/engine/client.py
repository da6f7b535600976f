"""The API process's side of an engine in a child process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from octavo_inference.common.framing import FrameReader, encode_frame
from octavo_inference.common.process import DUMP_SIGNAL, is_stopped
from octavo_inference.core.request import SleepEngine, WakeEngine
from octavo_inference.engine.ipc import (
    Asleep,
    EngineFailure,
    EngineInfo,
    EngineStep,
    ReadStepTimes,
    Ready,
    StepTimes,
    ToEngine,
    decode_from_engine,
)
from octavo_inference.engine.kv_events import KvEventLog
from octavo_inference.engine.output_router import EXIT_STALLED, EngineDiedError, OutputRouter
from octavo_inference.engine.spawn import EngineProcess

_EXIT_SECONDS = 5.0

T = TypeVar("T")


class ProcessClient(asyncio.Protocol):
    """asyncio protocol of an engine in a child process. Any end of the child ends every request with its cause.

    Runs in the event loop only. `stall_seconds`: a child that has work pending and sends no message for this long dumps
    its stacks and is killed.
    """

    def __init__(self, child: EngineProcess, *, stall_seconds: float) -> None:
        self.router = OutputRouter(self._send, _kv_event_log())
        self._child = child
        self._stall_seconds = stall_seconds
        self._reader = FrameReader()
        self._outbox: list[ToEngine] = []
        self._transport: asyncio.WriteTransport | None = None
        self._ready: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self._asleep: asyncio.Future[Asleep] | None = None
        self._parts: asyncio.Future[StepTimes] | None = None
        self._reported: EngineFailure | None = None
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> EngineInfo:
        """Wait until the model is loaded. Raises `EngineDiedError` if loading fails."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self, sock=self._child.connection)
        info = await self._ready
        self._spawn(self._watch(info.rank_pids))
        return info

    async def sleep(self) -> Asleep:
        """Make the engine release weights and KV pool. No sequence may be open. Raises `EngineDiedError`."""
        self._asleep = asyncio.get_running_loop().create_future()
        self._send(SleepEngine())
        return await self.unless_failed(self._asleep)

    async def wake(self) -> EngineInfo:
        """Make the engine load weights and KV pool again. Raises `EngineDiedError` if that fails."""
        self._ready = asyncio.get_running_loop().create_future()
        self._send(WakeEngine())
        return await self.unless_failed(self._ready)

    async def step_times(self) -> StepTimes:
        """Sums over the steps so far, by part. One call at a time, not asleep. Raises `EngineDiedError`."""
        self._parts = asyncio.get_running_loop().create_future()
        self._send(ReadStepTimes())
        return await self.unless_failed(self._parts)

    async def unless_failed(self, reply: asyncio.Future[T]) -> T:
        """Wait for something that the engine brings about. Raises `EngineDiedError` if it ends before."""
        failed = asyncio.ensure_future(self.router.failed())
        try:
            await asyncio.wait((reply, failed), return_when=asyncio.FIRST_COMPLETED)
            if not reply.done():
                raise failed.result()
            return reply.result()
        finally:
            failed.cancel()

    async def close(self) -> None:
        """Close the socket, which ends the child, and wait for it. Kill the child if it does not exit."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        if self._transport is not None:
            self._transport.close()
            self._transport = None  # later messages go nowhere
        else:
            self._child.connection.close()
        if not self._ready.done() or self._ready.cancelled():
            self._child.process.kill()  # while it loads, the child would not notice the closed socket
        await asyncio.to_thread(self._reap)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # uvloop's transports have the methods of asyncio's without being subclasses of them.
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        for frame in self._reader.feed(data):
            message = decode_from_engine(frame)
            if isinstance(message, EngineStep):
                self.router.deliver(message)
            elif isinstance(message, Ready):
                self.router.loaded(message.stats)
                if not self._ready.done():  # the caller may have cancelled
                    self._ready.set_result(message.info)
            elif isinstance(message, Asleep):
                if self._asleep is not None and not self._asleep.done():
                    self._asleep.set_result(message)
            elif isinstance(message, StepTimes):
                if self._parts is not None and not self._parts.done():
                    self._parts.set_result(message)
            elif isinstance(message, EngineFailure):
                self._reported = message

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- the exit status is more precise
        """Called by asyncio: the child has ended, or this side closed the socket."""
        if not self._closing:
            self._spawn(self._on_exit())

    def _send(self, message: ToEngine) -> None:
        # All messages of one event loop iteration go in one frame.
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(message)

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.write(encode_frame(self._outbox))
        self._outbox.clear()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _on_exit(self) -> None:
        status = await asyncio.to_thread(self._reap)
        failure = self._reported or EngineFailure(message=_cause(status))
        error = EngineDiedError(failure.message, failure.status)
        self.router.fail(error)
        if not self._ready.done():
            self._ready.set_exception(error)

    def _reap(self) -> int:
        try:
            return self._child.process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.process.kill()
            return self._child.process.wait()

    async def _watch(self, ranks: tuple[int, ...]) -> None:
        """Kill the child if it makes no progress. Counts in ticks, so that a suspended host does not count as a hang.

        `ranks` are pids of other processes that may block the child.
        """
        tick = self._stall_seconds / 10
        quiet = 0.0
        heartbeat = self.router.heartbeat
        while True:
            await asyncio.sleep(tick)
            if self.router.heartbeat != heartbeat or not self.router.sequences:
                heartbeat, quiet = self.router.heartbeat, 0.0
                continue
            quiet += tick
            if quiet >= self._stall_seconds:
                break
        pending = self.router.sequences
        stopped = is_stopped(self._child.process.pid)
        self._child.process.send_signal(DUMP_SIGNAL)
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, DUMP_SIGNAL)
        await asyncio.sleep(0.5)  # time to write the dump
        self._child.process.kill()
        self.router.fail(
            EngineDiedError(
                f"the engine completed no step for {self._stall_seconds:g} s with {pending} sequences pending; "
                + (
                    "its process is stopped (SIGSTOP or a debugger), so it wrote no stacks"
                    if stopped
                    else "its stacks are in the log above"
                ),
                EXIT_STALLED,
            )
        )


def _kv_event_log() -> KvEventLog:
    # Microseconds: no process changes blocks faster than that, so a later process starts above all earlier sequences.
    return KvEventLog(time.time_ns() // 1000)


def _cause(status: int) -> str:
    if status >= 0:
        return f"the engine process ended with status {status}; its log above says why"
    name = signal.Signals(-status).name
    hint = (
        "; the memory limit is the usual cause: lower --kv-memory, on a GPU --swap-memory" if name == "SIGKILL" else ""
    )
    return f"the engine process was killed by {name}{hint}"
