"""A reservation: one request's place on one replica, and its outcome."""

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
    """One request's place on one replica: `ModelPool` grants it, and takes it back with a `RequestOutcome`.

    `in_flight`: the request as the replica's load counts it. `new_keys`: keys of its prompt that were not assumed to be
    cached there before. `refusals`: those of the replica before this request was sent. `track`: counts its answer while
    there is a canary.
    """

    replica: Replica
    prompt: Prompt
    choice: Choice
    in_flight: InFlightRequest
    tenant: str = ""
    new_keys: tuple[bytes, ...] = ()
    refusals: int = 0
    track: TrackStats | None = None

    @property
    def in_engine(self) -> bool:
        """False if the request needs no engine: it counts neither as load nor for its tenant."""
        return self.in_flight.rows > 0

    @property
    def matched(self) -> int:
        """Prompt tokens predicted to be in the replica's prefix cache."""
        return self.prompt.tokens - self.in_flight.uncached

    @property
    def generated(self) -> int:
        """Known tokens of its answer so far."""
        return self.in_flight.generated

    @property
    def charge(self) -> float:
        """Tokens charged to its tenant in advance."""
        return cost(self.prompt.tokens, self.in_flight.output)

    def sent(self, *, streamed: bool) -> None:
        """The request is being sent. Without a stream only the replica's reports show the answer's progress."""
        if not streamed:
            self.replica.load.unseen.add(self.in_flight)

    def first_token(self, seconds: float) -> None:
        """The first token of a stream came after so many seconds: the prompt is computed."""
        self.replica.load.began(self.in_flight)
        if self.track is not None:
            self.track.first_token(seconds)

    def progress(self, tokens: float) -> None:
        """Count `tokens` more tokens of its answer."""
        self.replica.load.progress(self.in_flight, tokens)


class Ending(Enum):
    """How a request ended at its replica."""

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
        """True if the replica computed the prompt, so that its prefix cache holds it."""
        return self in _COMPUTED

    @property
    def ok(self) -> bool | None:
        """True for a success of the replica, False for an error, None if the ending is evidence of neither."""
        return True if self in _OK else False if self in _ERRORS else None

    @property
    def retryable(self) -> bool:
        """True if another replica may be tried: no part of an answer came, and no token was computed."""
        return self in _RETRYABLE


_COMPUTED = {Ending.FINISHED, Ending.BROKEN, Ending.ABANDONED}
_OK = {Ending.FINISHED, Ending.REFUSED}
_ERRORS = {Ending.FAILED, Ending.BROKEN, Ending.UNREACHED}
_RETRYABLE = {Ending.UNREACHED, Ending.DRAINING}


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """How a reservation's request ended, and the tokens that were computed for it."""

    reservation: Reservation
    ending: Ending
    prompt_tokens: int = 0
    output_tokens: int = 0
