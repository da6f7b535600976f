"""One pod as the gateway knows it: what was sent to it, and what it says of itself if that can be true."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from msgspec.structs import fields

from octavo_common.step_cost import StepCost
from octavo_gateway.discovery.endpoints import Endpoint
from octavo_gateway.routing import headroom
from octavo_gateway.routing.router import Candidate, Report
from octavo_gateway.routing.step_cost import Steps
from octavo_protocol.load import LoadReport

# Reports are taken every second; an older one says less than what this gateway itself has sent.
REPORT_SECONDS = 5.0
# How long a pod that did not take a request is left alone, doubled each time it happens again. A report of health or
# an answer ends it.
# The first pause is about what Kubernetes needs to notice that a container died.
AVOID_FIRST = 2.0
AVOID_DRAINING = 5.0
AVOID_LONGEST = 10.0
# More than any pod has of anything.
MOST = 2**53
_NUMBERS = tuple(each.name for each in fields(LoadReport) if each.type in (int, float))
_numbers = attrgetter(*_NUMBERS)


class Growing(Protocol):
    """A request whose answer is not seen growing; `asks` as `Replica.sent` gave it."""

    asks: int

    def progress(self, tokens: float) -> None:
        """Count tokens that were generated."""


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

    def sent(self, tokens: int, uncached: int) -> None:
        """Count a request."""
        self.requests += 1
        self.tokens += tokens
        self.uncached += uncached
        self.prefill += uncached

    def finished(self, tokens: int, uncached: int) -> None:
        """Count one that is over."""
        self.requests -= 1
        self.tokens -= tokens
        self.uncached -= uncached


@dataclass(slots=True, eq=False)
class Replica:
    """One pod.

    What was sent there is counted three times: all that is `in_flight`, what came after the last report was asked for
    (`since_report`), and after the one on its way was (`since_ask`). `asks` counts the reports asked for; `waiting`
    while one is. `growth`: tokens that those in flight will likely still generate; `private`: what they have of their
    own, which is prompt tokens that were not cached and tokens generated. `tells_cache` is False where all that it
    caches is too much to be told. `size`: KV tokens and rows by the last report that could be true. `unseen`: requests
    whose answers come in one piece. `known`: what routing needs of `report` and `figures`, made once for all requests
    until the next one.
    """

    endpoint: Endpoint
    in_flight: SentRequests = field(default_factory=SentRequests)
    since_report: SentRequests = field(default_factory=SentRequests)
    since_ask: SentRequests = field(default_factory=SentRequests)
    growth: float = 0.0
    private: float = 0.0
    asks: int = 0
    waiting: bool = False
    report: LoadReport | None = None
    size: tuple[int, int] | None = None
    known: Report | None = None
    report_ask: int = 0
    reported_at: float = 0.0
    asked_at: float = float("-inf")
    tells_cache: bool = True
    first_asked: float | None = None
    failures: int = 0
    avoided_at: float = float("-inf")
    avoid_until: float = float("-inf")
    start_time: float | None = None
    figures: StepCost | None = None
    steps: Steps = field(default_factory=Steps)
    complaints: set[str] = field(default_factory=set)
    unseen: set[Growing] = field(default_factory=set)

    def accepts(self, now: float) -> bool:
        """Whether new requests may be sent to it."""
        leaving = self.report is not None and self.report.draining
        return self.endpoint.ready and not leaving and now >= self.avoid_until

    def avoid(self, now: float, *, draining: bool = False) -> None:
        """Leave it alone for a while: it refused a connection, or said that it drains."""
        first = AVOID_DRAINING if draining else AVOID_FIRST
        self.avoid_until = now + min(AVOID_LONGEST, first * 2**self.failures)
        self.failures = min(self.failures + 1, 10)
        self.avoided_at = now

    def trust(self) -> None:
        """Take it back: it answered."""
        self.failures = 0
        self.avoid_until = float("-inf")

    def age(self, now: float) -> float | None:
        """Seconds since the report was asked for; None without one."""
        return now - self.reported_at if self.report else None

    def candidate(self, now: float, matched: int = 0) -> Candidate:
        """What the router is told of it. `matched` tokens of the request's prompt are in its cache."""
        age, sent, since = now - self.reported_at, self.in_flight, self.since_report
        return Candidate(
            self.endpoint.url, sent.requests, sent.tokens, since.requests, since.tokens,
            self.known if age <= REPORT_SECONDS else None, since.prefill, sent.prefill, matched, max(0.0, age),
        )  # fmt: skip

    def _by_own_counts(self, pool: int, rows: int) -> headroom.PodHeadroom:
        """What this gateway sent there, generated tokens included."""
        used = max(self.in_flight.tokens, self.private)
        return headroom.PodHeadroom(pool, used, self.in_flight.requests, rows, growth=self.growth, private=self.private)

    def room(self, now: float, output: float, gateways: int) -> headroom.PodHeadroom:
        """What it holds and will hold, if answers of others have `output` tokens; `gateways` send to it."""
        known = self.known
        if known is None:
            # One that has an address for reports and never gave any is not waited for.
            soon = self.first_asked is None or now - self.first_asked < REPORT_SECONDS
            if bool(self.endpoint.admin_url) and soon:
                return headroom.PodHeadroom(None, 0.0, self.in_flight.requests, headroom.BLIND)
            # What it said last that could be true bounds what is sent to one that says nonsense now.
            return self._by_own_counts(*self.size) if self.size else headroom.ANY
        in_flight, since, pool = self.in_flight.requests, self.since_report, known.pool_tokens
        used: float
        if now - self.reported_at > REPORT_SECONDS:
            return self._by_own_counts(pool, known.max_rows)
        used = known.used_tokens + since.uncached
        growth, private = self.growth, self.private
        others = known.rows - (in_flight - since.requests)
        due = False
        if others > 0:
            growth += others * output / 2
            # Those of other gateways are taken to be as the own ones are.
            private += others * private / max(1, in_flight)
            due = in_flight * gateways < known.running
        elif others < 0:
            # Sent before the report, and not in it yet: still being read there.
            used -= others * self.in_flight.tokens / max(1, in_flight)
        rows = max(in_flight, known.rows + since.requests)
        return headroom.PodHeadroom(pool, max(0.0, used), rows, known.max_rows, due, growth, private)

    def sent(self, tokens: int, uncached: int) -> int:
        """Count a request that goes there; what to say with `began` and `finished` later."""
        for counts in (self.in_flight, self.since_report, self.since_ask):
            counts.sent(tokens, uncached)
        self.private += uncached
        return self.asks

    def began(self, uncached: int, asks: int) -> None:
        """Count a request whose prompt is computed."""
        self.in_flight.prefill -= uncached
        if asks >= self.report_ask:
            self.since_report.prefill -= uncached
        if asks >= self.asks:
            self.since_ask.prefill -= uncached

    def finished(self, tokens: int, uncached: int) -> None:
        """Count a request that is over: one less than the report says, or than was sent after it."""
        for counts in (self.in_flight, self.since_report, self.since_ask):
            counts.finished(tokens, uncached)

    def asked(self, now: float) -> None:
        """A report is on its way: what is sent from here on may not be in it."""
        self.asks += 1
        self.asked_at = now
        self.first_asked = now if self.first_asked is None else self.first_asked
        self.since_ask = SentRequests()

    def reported(self, report: LoadReport) -> bool:
        """The report came; False when its steps cannot follow those of the one before, and are left out."""
        self.report = report
        self._know()
        self.report_ask = self.asks
        self.reported_at = self.asked_at
        self.since_report = copy(self.since_ask)
        if self.asked_at > self.avoided_at:
            self.trust()
        return self.steps.feed(report.steps)

    def grew(self, tokens: float, before: int) -> None:
        """Every row grew by about `tokens` between two reports, the earlier of which was number `before`."""
        for request in self.unseen:
            # One that came in between was not there all the time: better too little than too much.
            if request.asks < before:
                request.progress(tokens)

    def restarted(self, start_time: float) -> bool:
        """Whether another process answers than before: then nothing learned of the old one is true of it."""
        before, self.start_time = self.start_time, start_time
        if before in (None, start_time):
            return False
        self.steps, self.figures = Steps(), None
        self.tells_cache = True
        self.report = self.known = self.size = None
        return True

    def doubted(self) -> None:
        """What it said of itself is not believed any more."""
        self.report = self.known = None

    def learned(self, figures: StepCost | None) -> None:
        """What its steps cost."""
        self.figures = figures
        self._know()

    def _know(self) -> None:
        load = self.report
        if load is not None:
            used = load.blocks_pinned * load.block_size + load.waiting_tokens
            self.known = Report(
                load.blocks_total * load.block_size, used, load.running + load.waiting, load.max_running,
                load.uncached_prompt_tokens, load.max_batched_tokens, self.figures, load.running,
            )  # fmt: skip
            self.size = self.known.pool_tokens, self.known.max_rows

    def complain(self, kind: str) -> bool:
        """It says what cannot be true; whether for the first time of this kind."""
        first = kind not in self.complaints
        self.complaints.add(kind)
        return first


def implausible(report: LoadReport) -> str | None:
    """What in a report cannot be, in words; None when all of it can."""
    for name, value in zip(_NUMBERS, _numbers(report), strict=True):
        if not 0 <= value <= MOST:
            return f"{name} is {value}"
    if not 0 < report.block_size <= 1 << 16:
        return f"block_size is {report.block_size}"
    if not report.blocks_total > 0:
        return f"blocks_total is {report.blocks_total}"
    if report.blocks_pinned + report.blocks_cached > report.blocks_total:
        held = report.blocks_pinned + report.blocks_cached
        return f"blocks_pinned and blocks_cached are {held}, more than blocks_total {report.blocks_total}"
    if not report.max_running:
        return "max_running is 0"
    if report.running > report.max_running:
        return f"running is {report.running}, more than max_running {report.max_running}"
    return None
