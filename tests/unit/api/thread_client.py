"""An engine in a thread of the test's process, as `octavo_inference.engine.client` reaches one in a child."""

from __future__ import annotations

import asyncio
import threading

from octavo_inference.core.engine import Engine
from octavo_inference.core.request import Abort, Request, ResetCache
from octavo_inference.engine.ipc import EngineInfo
from octavo_inference.engine.kv_events import KvEventLog
from octavo_inference.engine.loop import EngineLoop
from octavo_inference.engine.output_router import EngineDiedError, OutputRouter


class ThreadClient:
    """An engine in a thread; the interpreter lock is shared with the event loop."""

    def __init__(self, engine: Engine, info: EngineInfo) -> None:
        self.router = OutputRouter(self._send, KvEventLog(1))
        self._engine = engine
        self._info = info
        self._inbox: list[Request | Abort | ResetCache] = []
        self._condition = threading.Condition()
        self._stop = False
        self._thread: threading.Thread | None = None

    async def start(self) -> EngineInfo:
        """Start the thread."""
        self.router.loaded(self._engine.stats())
        self._thread = threading.Thread(
            target=self._run, args=(asyncio.get_running_loop(),), name="octavo-engine", daemon=True
        )
        self._thread.start()
        return self._info

    async def close(self) -> None:
        """Stop after the step that runs now."""
        with self._condition:
            self._stop = True
            self._condition.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _send(self, message: Request | Abort | ResetCache) -> None:
        with self._condition:
            self._inbox.append(message)
            self._condition.notify()

    def _run(self, event_loop: asyncio.AbstractEventLoop) -> None:
        loop = EngineLoop(self._engine)
        while True:
            with self._condition:
                timeout = loop.poll_timeout()
                self._condition.wait_for(lambda: self._stop or self._inbox or loop.poll_timeout() == 0, timeout)
                if self._stop:
                    return
                messages, self._inbox = self._inbox, []
            try:
                event_loop.call_soon_threadsafe(self.router.deliver, loop.run_once(messages))
                while loop.poll_timeout() is None and loop.on_idle() == 0 and not (self._inbox or self._stop):
                    pass
            except Exception as error:  # noqa: BLE001 -- whatever ended the engine ends the streams, with its cause
                event_loop.call_soon_threadsafe(self.router.fail, EngineDiedError(f"{type(error).__name__}: {error}"))
                return
