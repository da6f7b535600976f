"""Accounting of reservations: charges replica and tenant when one is made, and corrects both when it is settled."""

from __future__ import annotations

from octavo_common.virtual_token_counter import cost
from octavo_gateway.pool.canary_stats import CanaryStats
from octavo_gateway.pool.replica import Replica
from octavo_gateway.pool.replica_load import InFlightRequest
from octavo_gateway.pool.reservation import Ending, RequestOutcome, Reservation
from octavo_gateway.queueing.hold_queue import HoldQueue, RequestAttributes
from octavo_gateway.routing.candidate import Choice
from octavo_gateway.routing.output_length import OutputLengthEstimator
from octavo_gateway.routing.prefix_index import PrefixIndex
from octavo_gateway.routing.prompt_features import Prompt


class Accounting:
    """The open reservations of one model. `canary`: counts the answers of both tracks while there is a canary."""

    def __init__(self, index: PrefixIndex, lengths: OutputLengthEstimator, queue: HoldQueue[Reservation]) -> None:
        self.canary: CanaryStats | None = None
        self._index = index
        self._lengths = lengths
        self._queue = queue
        self._open: set[Reservation] = set()

    def __len__(self) -> int:
        """Number of reservations that are not settled."""
        return len(self._open)

    def begin_step(self, step: str) -> None:
        """Count answers for a new step of the canary, "" without one; no effect if the step is the same."""
        if step != (self.canary.step if self.canary else ""):
            self.canary = CanaryStats(step) if step else None

    def reserve(self, replica: Replica, choice: Choice, prompt: Prompt, attributes: RequestAttributes) -> Reservation:
        """Count a request at the replica chosen for it."""
        if not attributes.in_engine:
            in_flight = InFlightRequest(0, 0, 0.0, 0.0, 0, rows=0)
            reservation = Reservation(replica, prompt, choice, in_flight, refusals=replica.refusals)
            self._open.add(reservation)
            return reservation
        output = self._lengths.expected(attributes.most_output)
        reservation = Reservation(
            replica,
            prompt,
            choice,
            replica.load.send(prompt.tokens, prompt.tokens - choice.candidate.matched, output, attributes.adapter),
            attributes.tenant,
            self._index.sent(replica.url, prompt.keys),
            replica.refusals,
            self.canary.track(canary=replica.endpoint.canary) if self.canary else None,
        )
        self._queue.choose(reservation.tenant, reservation.charge)
        self._open.add(reservation)
        return reservation

    def settle(self, outcome: RequestOutcome, now: float) -> bool:
        """Take back the counts of a reservation, and record its outcome; False if it was settled before."""
        reservation, ending = outcome.reservation, outcome.ending
        if reservation not in self._open:
            return False
        self._open.remove(reservation)
        replica = reservation.replica
        replica.load.finish(reservation.in_flight)
        if ending.retryable:
            replica.back_off(now, draining=ending is Ending.DRAINING)
        if not reservation.in_engine:
            return True
        if not ending.computed:
            self._index.unsent(replica.url, reservation.new_keys)
        self._index.finished(replica.url, reservation.prompt.keys, now)
        spent = cost(outcome.prompt_tokens, outcome.output_tokens)
        self._queue.settle(reservation.tenant, spent - reservation.charge)
        if ending is Ending.FINISHED:
            self._lengths.finished(outcome.output_tokens)
        if reservation.track is not None and ending.ok is not None:
            reservation.track.answered(ok=ending.ok)
        return True
