"""One iteration of the engine loop: messages in, one step, outputs and state out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from octavo_inference.common.errors import OctavoError
from octavo_inference.core.request import REFUSED, Abort, OfferAdapter, Output, Request, ResetCache, WithdrawAdapter
from octavo_inference.engine.ipc import EngineStep, StepTimes, ToEngine

if TYPE_CHECKING:  # the API process imports this module too, and does not import numpy
    from octavo_inference.core.engine import Engine


class EngineLoop:
    """Applies messages, runs one step and reports."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def poll_timeout(self) -> float | None:
        """Seconds until the next iteration is due without a message. None if only a message can bring work."""
        delay = self._engine.delay() if self._engine.has_work else math.inf
        return None if math.isinf(delay) else delay

    def on_idle(self) -> float | None:
        """Call before an unbounded wait. Returns how many seconds to wait at most before the next call; None: no limit.

        Raises `PoolError` if the accounting check of the block pool fails.
        """
        return self._engine.on_idle()

    def step_times(self) -> StepTimes:
        """Sums over the steps so far, and the seconds of each part of the model in them."""
        return StepTimes(parts=self._engine.backend.part_seconds(), steps=self._engine.counters.steps())

    def run_once(self, messages: Iterable[ToEngine]) -> EngineStep:
        """Apply `messages` in order, then run one step. A rejected request ends with an error output."""
        outputs: list[Output] = []
        for message in messages:
            if isinstance(message, Abort):
                self._engine.abort(message.id, message.index)
                continue
            if isinstance(message, ResetCache):
                self._engine.reset_cache()
                continue
            if isinstance(message, OfferAdapter):
                self._engine.adapters.offer(message.key, message.path)
                continue
            if isinstance(message, WithdrawAdapter):
                self._engine.adapters.withdraw(message.key)
                continue
            if not isinstance(message, Request):
                continue
            try:
                self._engine.submit(message)
            except OctavoError as error:
                outputs += [
                    Output(
                        id=message.id,
                        index=index,
                        tokens=[],
                        finish_reason="error",
                        stop_reason=REFUSED,
                        error=str(error),
                    )
                    for index in range(message.sampling.n)
                ]
        if self._engine.has_work:
            outputs += self._engine.step()
        known, forgotten = self._engine.cache_changes()
        return EngineStep(
            outputs=outputs,
            stats=self._engine.stats(),
            stalled=self._engine.stalled,
            known=known,
            forgotten=forgotten,
            guidance=self._engine.counters.guidance if self._engine.counters.guidance.used else None,
            speculation=self._engine.speculation,
            adapters=self._engine.adapters.changes(),
        )
