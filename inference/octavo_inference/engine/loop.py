"""One turn of the engine, the same in a child process and in a thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from octavo_inference.common.errors import OctavoError, QueueFullError
from octavo_inference.core.request import Abort, Output, Request, ResetCache
from octavo_inference.engine.ipc import EngineStep
from octavo_protocol.load import LoadReport

# `Output.stop_reason` of a request that the engine did not take: it could never be served, or its queue is full.
REFUSED = "refused"
QUEUE_FULL = "queue_full"


class Engine(Protocol):
    """What serving needs of an engine. Used from one thread."""

    @property
    def has_work(self) -> bool:
        """Whether some request is not finished."""
        ...

    def delay(self) -> float:
        """Seconds until a step has something to compute, if nothing else arrives; 0 nearly always."""
        ...

    def submit(self, request: Request) -> None:
        """Queue a request. Raises `RequestError` or `QueueFullError`."""
        ...

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Forget a request or one of its sequences; unknown ones are fine."""
        ...

    def reset_cache(self) -> None:
        """Forget all prefixes."""
        ...

    def rest(self) -> bool:
        """Called when nothing is left to do; whether to call it again. Raises `PoolError` when its books are wrong."""
        ...

    def step(self) -> list[Output]:
        """Compute one batch."""
        ...

    def cache_changes(self) -> tuple[bytes, bytes]:
        """Keys of blocks that can be found now and that cannot, of all that changed since the last call."""
        ...

    def load_report(
        self, *, model: str, start_time: float, ready: bool, draining: bool, cold_start: float = 0.0
    ) -> LoadReport:
        """State now, in constant time."""
        ...


def report(engine: Engine) -> LoadReport:
    """The engine's part of the load report; what only the server knows is filled in where it is served."""
    return engine.load_report(model="", start_time=0.0, ready=True, draining=False)


class EngineLoop:
    """Applies messages, steps once and reports."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._heartbeat = 0

    def pause(self) -> float | None:
        """Seconds until the next turn is due unless a message comes before; None when only a message can bring work."""
        return self._engine.delay() if self._engine.has_work else None

    def rest(self) -> bool:
        """To be called before a wait without end; whether to look for messages and call again instead of waiting.

        Raises `PoolError` when the engine's books are wrong.
        """
        return self._engine.rest()

    def turn(self, messages: Iterable[Request | Abort | ResetCache]) -> EngineStep:
        """Apply `messages` in order, then run one step. A request the engine refuses ends with an error output."""
        outputs: list[Output] = []
        for message in messages:
            if isinstance(message, Abort):
                self._engine.abort(message.id, message.index)
                continue
            if isinstance(message, ResetCache):
                self._engine.reset_cache()
                continue
            try:
                self._engine.submit(message)
            except OctavoError as error:
                reason = QUEUE_FULL if isinstance(error, QueueFullError) else REFUSED
                outputs += [
                    Output(
                        id=message.id,
                        index=index,
                        tokens=[],
                        finish_reason="error",
                        stop_reason=reason,
                        error=str(error),
                    )
                    for index in range(message.sampling.n)
                ]
        if self._engine.has_work:
            outputs += self._engine.step()
        self._heartbeat += 1
        known, forgotten = self._engine.cache_changes()
        return EngineStep(
            heartbeat=self._heartbeat, outputs=outputs, report=report(self._engine), known=known, forgotten=forgotten
        )
