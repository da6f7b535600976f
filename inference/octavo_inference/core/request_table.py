"""The requests that are not finished, each with those of its sequences that are not."""

from __future__ import annotations

from collections.abc import Callable

from octavo_inference.core.deadlines import Deadlines
from octavo_inference.core.request import FinishReason, Output
from octavo_inference.core.scheduler import Scheduler
from octavo_inference.core.sequence import Sequence


class RequestTable:
    """Knows sequences by their request's id, and ends them wherever they are. `clock` gives seconds."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self.deadlines = Deadlines()
        self._scheduler = scheduler
        self._clock = clock
        self._sequences: dict[str, list[Sequence]] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sequences

    def add(self, sequences: list[Sequence], now: float) -> None:
        """Take the sequences of one request, which begins now."""
        request = sequences[0].request
        self._sequences[request.id] = sequences
        if request.timeout is not None:
            self.deadlines.add(request.id, now + request.timeout)

    def sequences(self, request_id: str) -> list[Sequence]:
        """What is left of a request, in a list that may be kept; empty when it has finished."""
        return self._sequences.get(request_id, [])[:]

    def finish(self, sequence: Sequence) -> None:
        """Free all a sequence has and forget it."""
        self._scheduler.finish(sequence, self._clock())
        siblings = self._sequences[sequence.request.id]
        siblings.remove(sequence)
        if not siblings:
            del self._sequences[sequence.request.id]
            self.deadlines.remove(sequence.request.id)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Finish what is left of a request, or one of its sequences, without a word."""
        # Siblings before their leader, or they would be queued when it goes.
        for sequence in reversed(self.sequences(request_id)):
            if index is None or sequence.index == index:
                self.finish(sequence)

    def end(
        self, request_id: str, reason: FinishReason, error: str | None, stop_reason: str | None = None
    ) -> list[Output]:
        """Finish what is left of a request: an output without tokens for each of its sequences."""
        outputs = [
            Output(
                id=request_id,
                index=sequence.index,
                tokens=[],
                logprobs=None if sequence.request.sampling.logprobs is None else [],
                finish_reason=reason,
                stop_reason=stop_reason,
                cached_tokens=sequence.cached,
                error=error,
            )
            for sequence in reversed(self.sequences(request_id))
        ]
        self.abort(request_id)
        return outputs
