"""What a reservation counts when it is made, at its replica and for its tenant, and takes back when it is settled."""

from __future__ import annotations

from octavo_common.virtual_token_counter import cost
from octavo_gateway.pool.canary_stats import CanaryStats
from octavo_gateway.pool.replica import Replica
from octavo_gateway.pool.reservation import Ending, RequestOutcome, Reservation
from octavo_gateway.queueing.hold_queue import HoldQueue, RequestAttributes
from octavo_gateway.routing.candidate import Choice
from octavo_gateway.routing.output_length import OutputLengthEstimator
from octavo_gateway.routing.prefix_index import PrefixIndex
from octavo_gateway.routing.prompt_features import Prompt


class Accounting:
    """Of one model. `canary`: what its answers are counted by while it has one."""

    def __init__(self, index: PrefixIndex, lengths: OutputLengthEstimator, queue: HoldQueue[Reservation]) -> None:
        self.canary: CanaryStats | None = None
        self._index = index
        self._lengths = lengths
        self._queue = queue
        self._open: set[Reservation] = set()

    def __len__(self) -> int:
        """Reservations that are not settled."""
        return len(self._open)

    def begin_step(self, step: str) -> None:
        """Count answers by a new step of the canary, "" without one; nothing happens where the step is the same."""
        if step != (self.canary.step if self.canary else ""):
            self.canary = CanaryStats(step) if step else None

    def reserve(self, replica: Replica, choice: Choice, prompt: Prompt, attributes: RequestAttributes) -> Reservation:
        """Count a request at the replica that was chosen for it."""
        output = self._lengths.expected(attributes.most_output)
        reservation = Reservation(
            replica,
            prompt,
            choice,
            replica.load.send(prompt.tokens, prompt.tokens - choice.candidate.matched, output),
            attributes.tenant,
            self._index.sent(replica.url, prompt.keys),
            self.canary.track(canary=replica.endpoint.canary) if self.canary else None,
        )
        self._queue.choose(reservation.tenant, reservation.charge)
        self._open.add(reservation)
        return reservation

    def settle(self, outcome: RequestOutcome, now: float) -> bool:
        """Take all of it back, and learn from how it ended; False where that was done before."""
        reservation, ending = outcome.reservation, outcome.ending
        if reservation not in self._open:
            return False
        self._open.remove(reservation)
        replica = reservation.replica
        replica.load.finish(reservation.in_flight)
        if ending.retryable:
            replica.avoid(now, draining=ending is Ending.DRAINING)
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
