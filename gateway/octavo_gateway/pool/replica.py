"""The gateway's view of one pod: requests sent to it, its load report, and whether it accepts more requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from octavo_common.step_cost import StepCost
from octavo_gateway.discovery.endpoints import Endpoint
from octavo_gateway.pool.replica_load import ReplicaLoad
from octavo_gateway.routing import headroom
from octavo_gateway.routing.adapter_cost import IN_PLACE, AdapterPlace, adapter_place
from octavo_gateway.routing.candidate import Candidate, Report
from octavo_gateway.routing.headroom import PodHeadroom
from octavo_gateway.routing.step_cost import Steps
from octavo_protocol.adapters import AdapterReport
from octavo_protocol.load import LoadReport

# Reports are taken every second. An older one is worse evidence than the requests that this gateway has sent.
REPORT_SECONDS = 5.0
# Back-off after a pod did not accept a request, in seconds, doubled at each repetition. An answer or a report requested
# later ends it. The first back-off is about the time that Kubernetes needs to detect a dead container.
AVOID_FIRST = 2.0
AVOID_DRAINING = 5.0
AVOID_LONGEST = 10.0


@dataclass(slots=True, eq=False)
class Replica:
    """One pod.

    `load`: requests sent to it. `report`: the last plausible one, requested at `reported_at`. `known`: summary of
    `report` and `step_cost` for routing, made once per report. `size`: KV tokens and rows of the last plausible report,
    kept when a later report is rejected. `asked_at`: when the last report was requested. `waiting`: a request for a
    report is open. `tells_cache` is False if the list of its cached blocks is too long for a report. `adapters`: those
    of the last plausible report, by name; None before the first. `loaded`: the names of the loaded ones.
    """

    endpoint: Endpoint
    load: ReplicaLoad = field(default_factory=ReplicaLoad)
    report: LoadReport | None = None
    reported_at: float = 0.0
    known: Report | None = None
    size: tuple[int, int] | None = None
    asked_at: float = float("-inf")
    first_asked: float | None = None
    waiting: bool = False
    tells_cache: bool = True
    start_time: float | None = None
    adapters: dict[str, AdapterReport] | None = None
    loaded: frozenset[str] = frozenset()
    steps: Steps = field(default_factory=Steps)
    step_cost: StepCost | None = None
    reported_kinds: set[str] = field(default_factory=set)
    failures: int = 0
    avoided_at: float = float("-inf")
    refusals: int = 0
    avoid_until: float = float("-inf")

    @property
    def url(self) -> str:
        """Its address, which is its key in router and prefix index."""
        return self.endpoint.url

    def accepts(self, now: float) -> bool:
        """True if it accepts new requests."""
        leaving = self.report is not None and self.report.draining
        return self.endpoint.ready and not leaving and now >= self.avoid_until

    def offers(self, adapter: str, now: float, *, listed: bool) -> bool:
        """True if it answers for an adapter, at once or after a load. `listed`: some replica lists the adapter.

        A replica that never reports may have any adapter, so it is tried if no other one lists it.
        """
        if self.adapters is None:
            return not listed and not self._reports_soon(now)
        found = self.adapters.get(adapter)
        return found is not None and found.state != "failed"

    def back_off(self, now: float, *, draining: bool = False) -> None:
        """Start the back-off: it refused a connection, or it drains."""
        first = AVOID_DRAINING if draining else AVOID_FIRST
        self.avoid_until = now + min(AVOID_LONGEST, first * 2**self.failures)
        self.failures = min(self.failures + 1, 10)
        self.refusals += 1
        self.avoided_at = now

    def end_backoff(self) -> None:
        """End the back-off: it answered."""
        self.failures = 0
        self.avoid_until = float("-inf")

    def age(self, now: float) -> float | None:
        """Seconds since the report was requested; None without one."""
        return now - self.reported_at if self.report else None

    def candidate(self, now: float, matched: int = 0, adapter: str = "") -> Candidate:
        """The candidate for the router. `matched` tokens of the request's prompt are in the pod's cache.

        `adapter`: that of the request, "" for the base model.
        """
        age, sent, since = now - self.reported_at, self.load.in_flight, self.load.since_report
        return Candidate(
            self.url, sent.requests, sent.tokens, since.requests, since.tokens,
            self.known if age <= REPORT_SECONDS else None, since.prefill, sent.prefill, matched, max(0.0, age),
            self._place(adapter) if adapter else IN_PLACE,
        )  # fmt: skip

    def _place(self, adapter: str) -> AdapterPlace:
        """The place of an adapter there."""
        found = (self.adapters or {}).get(adapter)
        own = self.load.adapters
        used = len(own)
        if self.known is not None:
            # Requests of other gateways: each may use a loaded adapter that none of the own ones does.
            others = self.known.rows - (self.load.in_flight.requests - self.load.since_report.requests)
            used += min(max(0, others), len(self.loaded.difference(own)))
        limit = self.report.max_loaded_adapters if self.report else 0
        state = found.state if found else None
        return adapter_place(state, sent=self.load.sent_adapter(adapter), used=used, limit=limit)

    def headroom(self, now: float, output: float, gateways: int) -> PodHeadroom:
        """Capacity and use of this pod, to which `gateways` gateways send.

        Requests of other gateways are assumed to have answers of `output` tokens.
        """
        known, load = self.known, self.load
        if known is None:
            return self._unreported(now)
        if now - self.reported_at > REPORT_SECONDS:
            return self._by_own_counts(known.pool_tokens, known.max_rows)
        in_flight, since = load.in_flight.requests, load.since_report
        used: float = known.used_tokens + since.uncached
        growth, private = load.growth, load.private
        others = known.rows - (in_flight - since.requests)
        due = False
        if others > 0:
            growth += others * output / 2
            # Requests of other gateways are assumed to hold as many private tokens as the own ones.
            private += others * private / max(1, in_flight)
            due = in_flight * gateways < known.running
        elif others < 0:
            # Sent before the report but not in it: the pod is still reading these requests.
            used -= others * load.in_flight.tokens / max(1, in_flight)
        rows = max(in_flight, known.rows + since.requests)
        return PodHeadroom(known.pool_tokens, max(0.0, used), rows, known.max_rows, due, growth, private)

    def _unreported(self, now: float) -> PodHeadroom:
        """Capacity and use without a plausible report."""
        if self._reports_soon(now):
            return PodHeadroom(None, 0.0, self.load.in_flight.requests, headroom.BLIND)
        # The size in the last plausible report bounds the requests to a pod that sends implausible ones now.
        return self._by_own_counts(*self.size) if self.size else headroom.ANY

    def _reports_soon(self, now: float) -> bool:
        """True if a pod that has not reported will: after REPORT_SECONDS it is not waited for any longer."""
        soon = self.first_asked is None or now - self.first_asked < REPORT_SECONDS
        return bool(self.endpoint.admin_url) and soon

    def _by_own_counts(self, pool: int, rows: int) -> PodHeadroom:
        """Use by the requests of this gateway alone, generated tokens included."""
        load = self.load
        used = max(load.in_flight.tokens, load.private)
        return PodHeadroom(pool, used, load.in_flight.requests, rows, growth=load.growth, private=load.private)

    def asked(self, now: float) -> None:
        """Count a report that was requested."""
        self.asked_at = now
        self.first_asked = now if self.first_asked is None else self.first_asked
        self.load.asked()

    def reported(self, report: LoadReport) -> bool:
        """Take the report; False if its step sums cannot follow the previous ones and were ignored."""
        self.report = report
        self._summarize()
        self.reported_at = self.asked_at
        self.load.reported()
        if self.asked_at > self.avoided_at:
            self.end_backoff()
        return self.steps.feed(report.steps)

    def adapters_differ(self, report: LoadReport) -> bool:
        """True if a report lists other adapters, or other states, than the one before."""
        return self.adapters is None or list(self.adapters.values()) != report.adapters

    def set_adapters(self, report: LoadReport) -> None:
        """Set its adapters to those of a report."""
        self.adapters = {one.name: one for one in report.adapters}
        self.loaded = frozenset(one.name for one in report.adapters if one.state == "loaded")

    def restarted(self, start_time: float) -> bool:
        """True if the process has restarted; all values learned from the old process are dropped."""
        before, self.start_time = self.start_time, start_time
        if before in (None, start_time):
            return False
        self.steps, self.step_cost = Steps(), None
        self.tells_cache = True
        self.report = self.known = self.size = None
        return True

    def discard_report(self) -> None:
        """Drop its report, which is not plausible any more."""
        self.report = self.known = None

    def set_step_cost(self, step_cost: StepCost | None) -> None:
        """Set its step cost."""
        self.step_cost = step_cost
        self._summarize()

    def first_of_kind(self, kind: str) -> bool:
        """Note an implausible report; True if it is the first of this kind."""
        first = kind not in self.reported_kinds
        self.reported_kinds.add(kind)
        return first

    def _summarize(self) -> None:
        load = self.report
        if load is not None:
            used = load.blocks_pinned * load.block_size + load.waiting_tokens
            self.known = Report(
                load.blocks_total * load.block_size, used, load.running + load.waiting, load.max_running,
                load.uncached_prompt_tokens, load.max_batched_tokens, self.step_cost, load.running,
            )  # fmt: skip
            self.size = self.known.pool_tokens, self.known.max_rows


def replicas_at(endpoints: Iterable[Endpoint], before: Mapping[str, Replica]) -> dict[str, Replica]:
    """The replicas at these endpoints, by address; those from `before` keep their state."""
    found = {}
    for endpoint in endpoints:
        replica = before.get(endpoint.url)
        # A new pod may get the address of an old one: the old pod's state does not apply to it.
        if replica is None or replica.endpoint.name != endpoint.name:
            replica = Replica(endpoint)
        replica.endpoint = endpoint
        found[endpoint.url] = replica
    return found
