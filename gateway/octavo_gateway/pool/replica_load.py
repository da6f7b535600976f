"""What this gateway has sent to one replica: requests in flight and their tokens, as counted since some moments."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One request at a replica: its prompt tokens, `uncached` of which are to be computed there, as far as is known.

    `output` tokens are likely to be generated, and `left` of them still. `asks` reports were asked for before it was
    sent. `began`: its prompt is computed.
    """

    tokens: int
    uncached: int
    output: float
    left: float
    asks: int
    began: bool = False

    @property
    def generated(self) -> int:
        """Tokens of its answer that are known of."""
        return round(self.output - self.left)


@dataclass(slots=True)
class SentRequests:
    """Requests sent since some moment, less those that finished since, and their prompt tokens.

    `uncached` tokens were not in the prefix cache, as far as is known; `prefill` are those of them whose prompts are
    not computed yet.
    """

    requests: int = 0
    tokens: int = 0
    uncached: int = 0
    prefill: int = 0

    def sent(self, request: InFlightRequest) -> None:
        """Count a request."""
        self.requests += 1
        self.tokens += request.tokens
        self.uncached += request.uncached
        self.prefill += request.uncached

    def finished(self, request: InFlightRequest) -> None:
        """Count one that is over."""
        self.requests -= 1
        self.tokens -= request.tokens
        self.uncached -= request.uncached


@dataclass(slots=True, eq=False)
class ReplicaLoad:
    """What was sent to one replica, counted three times.

    All that is `in_flight`, what came after the last report was asked for (`since_report`), and after the one on its
    way was (`since_ask`). `asks` counts the reports asked for, `report_ask` is the number of the last that came.
    `growth`: tokens that those in flight will likely still generate; `private`: what they have of their own, which is
    prompt tokens that were not cached and tokens generated. `unseen`: requests whose answers come in one piece.
    """

    in_flight: SentRequests = field(default_factory=SentRequests)
    since_report: SentRequests = field(default_factory=SentRequests)
    since_ask: SentRequests = field(default_factory=SentRequests)
    growth: float = 0.0
    private: float = 0.0
    asks: int = 0
    report_ask: int = 0
    unseen: set[InFlightRequest] = field(default_factory=set)

    def send(self, tokens: int, uncached: int, output: float) -> InFlightRequest:
        """Count a request that goes there."""
        request = InFlightRequest(tokens, uncached, output, output, self.asks)
        for counts in (self.in_flight, self.since_report, self.since_ask):
            counts.sent(request)
        self.private += uncached
        self.growth += output
        return request

    def began(self, request: InFlightRequest) -> None:
        """Its prompt is computed. Nothing happens when that was counted before."""
        if request.began:
            return
        request.began = True
        self.in_flight.prefill -= request.uncached
        if request.asks >= self.report_ask:
            self.since_report.prefill -= request.uncached
        if request.asks >= self.asks:
            self.since_ask.prefill -= request.uncached

    def progress(self, request: InFlightRequest, tokens: float) -> None:
        """Count tokens that were generated: they are in the replica's next report."""
        done = min(request.left, float(tokens))
        request.left -= done
        self.growth -= done
        self.private += done

    def finish(self, request: InFlightRequest) -> None:
        """Take back all that was counted: one less than the report says, or than was sent after it."""
        self.began(request)
        self.unseen.discard(request)
        self.growth -= request.left
        self.private -= request.uncached + request.output - request.left
        request.left = 0.0
        for counts in (self.in_flight, self.since_report, self.since_ask):
            counts.finished(request)

    def asked(self) -> None:
        """A report is on its way: what is sent from here on may not be in it."""
        self.asks += 1
        self.since_ask = SentRequests()

    def reported(self) -> None:
        """The report came: what was sent after it was asked for is not in it."""
        self.report_ask = self.asks
        self.since_report = copy(self.since_ask)

    def grew(self, tokens: float, before: int) -> None:
        """Every row grew by about `tokens` between two reports, the earlier of which was number `before`."""
        for request in self.unseen:
            # One that came in between was not there all the time: better too little than too much.
            if request.asks < before:
                self.progress(request, tokens)
