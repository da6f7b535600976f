"""Counts the requests in flight from this gateway to one replica, and their tokens."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One request at a replica.

    `tokens`: prompt tokens. `uncached`: the part of them to be computed there, as far as is known. `output`: tokens
    that it will likely generate; `left`: the part of them still to come. `asks`: number of reports requested before it
    was sent. `began`: its prompt is computed. `rows`: 0 for a request that needs no engine and counts for nothing.
    `adapter`: its adapter, "" for the base model.
    """

    tokens: int
    uncached: int
    output: float
    left: float
    asks: int
    began: bool = False
    rows: int = 1
    adapter: str = ""

    @property
    def generated(self) -> int:
        """Known tokens of its answer so far."""
        return round(self.output - self.left)


@dataclass(slots=True)
class SentRequests:
    """Requests sent since a moment, less those finished since, and their prompt tokens.

    `uncached`: tokens that were not in the prefix cache, as far as is known. `prefill`: the part of them whose prompts
    are not computed yet.
    """

    requests: int = 0
    tokens: int = 0
    uncached: int = 0
    prefill: int = 0

    def sent(self, request: InFlightRequest) -> None:
        """Count a request."""
        self.requests += request.rows
        self.tokens += request.tokens
        self.uncached += request.uncached
        self.prefill += request.uncached

    def finished(self, request: InFlightRequest) -> None:
        """Subtract a finished request."""
        self.requests -= request.rows
        self.tokens -= request.tokens
        self.uncached -= request.uncached


@dataclass(slots=True, eq=False)
class ReplicaLoad:
    """Requests sent to one replica, counted since three moments.

    `in_flight`: all unfinished ones. `since_report`: those sent after the last received report was requested.
    `since_ask`: those sent after the latest report was requested. `asks`: number of requested reports. `report_ask`:
    number of the last received one. `growth`: tokens that the requests in flight will likely still generate. `private`:
    KV tokens of their own, which are uncached prompt tokens and generated tokens. `unseen`: requests without a stream,
    whose progress only the reports show. `adapters`: requests in flight by their adapter. `adapter_asks`: number of
    reports requested before the last request of each adapter.
    """

    in_flight: SentRequests = field(default_factory=SentRequests)
    since_report: SentRequests = field(default_factory=SentRequests)
    since_ask: SentRequests = field(default_factory=SentRequests)
    growth: float = 0.0
    private: float = 0.0
    asks: int = 0
    report_ask: int = 0
    unseen: set[InFlightRequest] = field(default_factory=set)
    adapters: dict[str, int] = field(default_factory=dict)
    adapter_asks: dict[str, int] = field(default_factory=dict)

    def send(self, tokens: int, uncached: int, output: float, adapter: str = "") -> InFlightRequest:
        """Count a request that is sent."""
        request = InFlightRequest(tokens, uncached, output, output, self.asks, adapter=adapter)
        if adapter:
            self.adapters[adapter] = self.adapters.get(adapter, 0) + 1
            self.adapter_asks[adapter] = self.asks
        for counts in (self.in_flight, self.since_report, self.since_ask):
            counts.sent(request)
        self.private += uncached
        self.growth += output
        return request

    def began(self, request: InFlightRequest) -> None:
        """Count the request's prompt as computed; a second call has no effect."""
        if request.began:
            return
        request.began = True
        self.in_flight.prefill -= request.uncached
        if request.asks >= self.report_ask:
            self.since_report.prefill -= request.uncached
        if request.asks >= self.asks:
            self.since_ask.prefill -= request.uncached

    def progress(self, request: InFlightRequest, tokens: float) -> None:
        """Count generated tokens, which the replica's next report includes."""
        done = min(request.left, float(tokens))
        request.left -= done
        self.growth -= done
        self.private += done

    def finish(self, request: InFlightRequest) -> None:
        """Take back all counts of a request: one less than reported, or than sent after the report."""
        self.began(request)
        self.unseen.discard(request)
        self.growth -= request.left
        self.private -= request.uncached + request.output - request.left
        request.left = 0.0
        for counts in (self.in_flight, self.since_report, self.since_ask):
            counts.finished(request)
        if request.adapter:
            self.adapters[request.adapter] -= 1
            if not self.adapters[request.adapter]:
                del self.adapters[request.adapter]

    def sent_adapter(self, adapter: str) -> bool:
        """True if a request for an adapter is in flight, or was sent after the last received report was requested."""
        return adapter in self.adapters or adapter in self.adapter_asks

    def asked(self) -> None:
        """A report is requested: requests sent from now on may be missing in it."""
        self.asks += 1
        self.since_ask = SentRequests()

    def reported(self) -> None:
        """The report came: requests sent after it was requested are not in it."""
        self.report_ask = self.asks
        self.since_report = copy(self.since_ask)
        self.adapter_asks = {name: asks for name, asks in self.adapter_asks.items() if asks >= self.report_ask}

    def grew(self, tokens: float, before: int) -> None:
        """Count `tokens`, about the growth of every row between two reports. The earlier one was number `before`."""
        for request in self.unseen:
            # A request sent between the reports grew for a part of the time: too small a count is the safer error.
            if request.asks < before:
                self.progress(request, tokens)
