"""The unfinished requests, each with its unfinished sequences."""

from __future__ import annotations

from collections.abc import Callable

from octavo_inference.core.deadlines import Deadlines
from octavo_inference.core.request import DEADLINE, FinishReason, Output
from octavo_inference.core.scheduler import Scheduler
from octavo_inference.core.sequence import Sequence


class RequestTable:
    """Maps request ids to sequences and ends sequences in any state. `clock` returns seconds.

    `on_finished` is called with each request's id after its last sequence has ended.
    """

    def __init__(
        self, scheduler: Scheduler, clock: Callable[[], float], on_finished: Callable[[str], None] = lambda _: None
    ) -> None:
        self._on_finished = on_finished
        self.deadlines = Deadlines()
        self._scheduler = scheduler
        self._clock = clock
        self._sequences: dict[str, list[Sequence]] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sequences

    def add(self, sequences: list[Sequence], now: float) -> None:
        """Add the sequences of one request, which starts now."""
        request = sequences[0].request
        self._sequences[request.id] = sequences
        if request.timeout is not None:
            self.deadlines.add(request.id, now + request.timeout)

    def sequences(self, request_id: str) -> list[Sequence]:
        """A copy of the list of a request's unfinished sequences; empty if it has finished."""
        return self._sequences.get(request_id, [])[:]

    def finish(self, sequence: Sequence) -> None:
        """Free everything of a sequence and remove it."""
        self._scheduler.finish(sequence, self._clock())
        siblings = self._sequences[sequence.request.id]
        siblings.remove(sequence)
        if not siblings:
            del self._sequences[sequence.request.id]
            self.deadlines.remove(sequence.request.id)
            self._on_finished(sequence.request.id)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Finish the rest of a request, or one of its sequences, without an output."""
        # Siblings before their leader; otherwise the end of the leader would queue them.
        for sequence in reversed(self.sequences(request_id)):
            if index is None or sequence.index == index:
                self.finish(sequence)

    def expire(self, now: float) -> list[Output]:
        """End the requests past their deadline: with the tokens they have, or with an error if they have none."""
        outputs = []
        for request_id in self.deadlines.due(now):
            sequences = self.sequences(request_id)
            request = sequences[0].request
            begun = len(sequences) < request.sampling.n or any(s.num_known_tokens > s.prompt_len for s in sequences)
            message = f"its time of {request.timeout:g} s was up before its first token; {self._state()}"
            outputs += self.end(request.id, "length" if begun else "error", None if begun else message, DEADLINE)
        return outputs

    def _state(self) -> str:
        waiting = len(self._scheduler.queue) + self._scheduler.pending_forks
        return f"{len(self._scheduler.running)} sequences run and {waiting} wait"

    def end(
        self, request_id: str, reason: FinishReason, error: str | None, stop_reason: str | None = None
    ) -> list[Output]:
        """Finish the rest of a request, with an output without tokens for each of its sequences."""
        outputs = [
            Output(
                id=request_id,
                index=sequence.index,
                tokens=[],
                logprobs=[] if sequence.request.sampling.reports_logprobs else None,
                finish_reason=reason,
                stop_reason=stop_reason,
                cached_tokens=sequence.cached,
                error=error,
            )
            for sequence in reversed(self.sequences(request_id))
        ]
        self.abort(request_id)
        return outputs
