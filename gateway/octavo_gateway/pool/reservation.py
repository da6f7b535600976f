"""One request's place on one replica, and how its stay there ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from octavo_common.virtual_token_counter import cost
from octavo_gateway.pool.canary_stats import TrackStats
from octavo_gateway.pool.replica import Replica
from octavo_gateway.pool.replica_load import InFlightRequest
from octavo_gateway.routing.candidate import Choice
from octavo_gateway.routing.prompt_features import Prompt


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """One request's place on one replica: `ModelPool` gives it, and gets it back with an `RequestOutcome`.

    `in_flight` is the request as the replica's load counts it. `new_keys` are the pieces of its prompt that were not
    known to be there before. `track`: where its answer counts while there is a canary.
    """

    replica: Replica
    prompt: Prompt
    choice: Choice
    in_flight: InFlightRequest
    tenant: str = ""
    new_keys: tuple[bytes, ...] = ()
    track: TrackStats | None = None

    @property
    def matched(self) -> int:
        """Prompt tokens predicted to be cached there."""
        return self.prompt.tokens - self.in_flight.uncached

    @property
    def generated(self) -> int:
        """Tokens of its answer that are known of."""
        return self.in_flight.generated

    @property
    def charge(self) -> float:
        """What its tenant was charged in advance."""
        return cost(self.prompt.tokens, self.in_flight.output)

    def sent(self, *, streamed: bool) -> None:
        """It is being sent. How far an answer is that comes in one piece, only the replica's reports tell."""
        if not streamed:
            self.replica.load.unseen.add(self.in_flight)

    def first_token(self, seconds: float) -> None:
        """The first token of a stream came after so many seconds: from here on its prompt is computed."""
        self.replica.load.began(self.in_flight)
        if self.track is not None:
            self.track.first_token(seconds)

    def progress(self, tokens: float) -> None:
        """So many more tokens of its answer came."""
        self.replica.load.progress(self.in_flight, tokens)


class Ending(Enum):
    """How a request's stay at a replica ended."""

    FINISHED = "the whole answer came"
    REFUSED = "the replica answered that the request is at fault, or that it is too busy"
    FAILED = "the replica answered that it failed, or with something that is not HTTP"
    BROKEN = "the answer broke off, or ended with an error"
    UNREACHED = "the connection failed before an answer began"
    DRAINING = "the replica refused because it drains"
    ABANDONED = "the client left, or the gateway gave up on it: nothing is known of the replica"
    NOT_SENT = "the client left, or its time was up, before it was sent"

    @property
    def computed(self) -> bool:
        """Whether the replica took the prompt up, so that its cache has it."""
        return self in _COMPUTED

    @property
    def ok(self) -> bool | None:
        """Whether the replica did well; None where it says nothing of that."""
        return True if self in _OK else False if self in _ERRORS else None

    @property
    def retryable(self) -> bool:
        """Whether another replica may be tried: nothing of an answer came, and nothing was computed."""
        return self in _RETRYABLE


_COMPUTED = {Ending.FINISHED, Ending.BROKEN, Ending.ABANDONED}
_OK = {Ending.FINISHED, Ending.REFUSED}
_ERRORS = {Ending.FAILED, Ending.BROKEN, Ending.UNREACHED}
_RETRYABLE = {Ending.UNREACHED, Ending.DRAINING}


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """What is left of a reservation when its request has left the replica: how, and the tokens that were computed."""

    reservation: Reservation
    ending: Ending
    prompt_tokens: int = 0
    output_tokens: int = 0
