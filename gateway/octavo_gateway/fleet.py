"""What the gateway knows at run time: pods with what was sent to them, deployments with their held requests.

One event loop owns a fleet; nothing here awaits. Whoever changes what a pod can take (a report, an answer that ended,
a new table) calls for the held requests to be released, in order, as far as pods have room.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from octavo_gateway.endpoints import Deployment, Endpoint, Key, Table
from octavo_gateway.hold import Bounds, HoldQueue, Ticket
from octavo_gateway.openai import ApiError
from octavo_gateway.router import Ask, Candidate, Policy, Report, has_room, route
from octavo_gateway.tracks import Tally, Tracks, split
from octavo_protocol.load import LoadReport, ModelTraffic

# Reports are taken every second; an older one says less than what this gateway itself has sent.
REPORT_SECONDS = 5.0
# How long a pod that did not take a request is left alone, doubled each time it happens again. A report of health or
# an answer ends it.
# The first pause is about what Kubernetes needs to notice that a container died.
AVOID_FIRST = 2.0
AVOID_DRAINING = 5.0
AVOID_LONGEST = 10.0


@dataclass(slots=True, eq=False)
class Upstream:
    """One pod.

    `since*` counts what was sent after the report was asked for less what finished, `fresh*` after the one now on its
    way.
    """

    endpoint: Endpoint
    in_flight: int = 0
    in_flight_tokens: int = 0
    since: int = 0
    since_tokens: int = 0
    fresh: int = 0
    fresh_tokens: int = 0
    report: LoadReport | None = None
    reported_at: float = 0.0
    asked_at: float = 0.0
    failures: int = 0
    avoided_at: float = float("-inf")
    avoid_until: float = float("-inf")

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

    def candidate(self, now: float) -> Candidate:
        """What the router is told of it."""
        load = self.report if now - self.reported_at <= REPORT_SECONDS else None
        report = None
        if load is not None:
            used = load.blocks_pinned * load.block_size + load.waiting_tokens
            report = Report(load.blocks_total * load.block_size, used, load.running + load.waiting, load.max_running)
        return Candidate(
            self.endpoint.url, self.in_flight, self.in_flight_tokens, self.since, self.since_tokens, report
        )

    def sent(self, tokens: int) -> None:
        """Count a request that goes there."""
        self.in_flight += 1
        self.in_flight_tokens += tokens
        self.since += 1
        self.since_tokens += tokens
        self.fresh += 1
        self.fresh_tokens += tokens

    def finished(self, tokens: int) -> None:
        """Count a request that is over: one less than the report says, or than was sent after it."""
        self.in_flight -= 1
        self.in_flight_tokens -= tokens
        self.since -= 1
        self.since_tokens -= tokens
        self.fresh -= 1
        self.fresh_tokens -= tokens

    def asked(self, now: float) -> None:
        """A report is on its way: what is sent from here on may not be in it."""
        self.asked_at = now
        self.fresh = self.fresh_tokens = 0

    def reported(self, report: LoadReport, now: float) -> None:
        """The report came."""
        self.report = report
        self.reported_at = now
        self.since, self.since_tokens = self.fresh, self.fresh_tokens
        if self.asked_at > self.avoided_at:
            self.trust()


@dataclass(slots=True, eq=False)
class Lease:
    """One request's place on one pod."""

    backend: Backend
    upstream: Upstream
    tokens: int
    tally: Tally | None = None

    def answered(self, *, well: bool) -> None:
        """Tell what came of it, where there are two tracks to compare."""
        if self.tally is not None:
            self.tally.answered(well=well)

    def first_token(self, seconds: float) -> None:
        """Tell how long the first token of a stream took."""
        if self.tally is not None:
            self.tally.first_token(seconds)

    def release(self) -> None:
        """Give the place back; the next held request may have it."""
        self.upstream.finished(self.tokens)
        self.backend.in_flight -= 1
        self.backend.pump()


@dataclass(slots=True, eq=False)
class Backend:
    """One LLMDeployment at run time. Times are Unix seconds."""

    deployment: Deployment
    queue: HoldQueue[Lease]
    clock: Callable[[], float]
    random: Callable[[], float]
    upstreams: dict[str, Upstream] = field(default_factory=dict)
    arrivals: int = 0
    arrival_tokens: int = 0
    in_flight: int = 0
    last_arrival: float = 0.0
    tracks: Tracks | None = None

    def arrived(self, tokens: int) -> None:
        """Count an arrival."""
        self.arrivals += 1
        self.arrival_tokens += tokens
        self.last_arrival = self.clock()

    def available(self) -> bool:
        """Whether any pod accepts requests now."""
        now = self.clock()
        return any(True for _ in self._accepting(now))

    def lease(self, tokens: int) -> Lease | None:
        """A place on a pod at once; None when no pod accepts or others have waited longer."""
        if len(self.queue):
            return None
        now = self.clock()
        return self._lease([u.candidate(now) for u in self._accepting(now)], tokens)

    def hold(self, size: int, tokens: int) -> Ticket[Lease]:
        """A place in the queue. Raises `ApiError` 503 when the deployment does not hold or its queue is full."""
        if not self.deployment.hold and not self.available():
            raise self._without_replica()
        ticket: Ticket[Lease] = Ticket(size, tokens, self.clock(), get_running_loop().create_future())
        if not self.queue.offer(ticket):
            raise self.unavailable(f"no replica is ready and {len(self.queue)} requests are already held")
        return ticket

    def withdraw(self, ticket: Ticket[Lease]) -> None:
        """Leave the queue; a place that was granted in the same moment goes back."""
        self.queue.remove(ticket)
        granted = ticket.granted
        if granted.done() and not granted.cancelled() and granted.exception() is None:
            granted.result().release()
        else:
            granted.cancel()
            self.pump()

    def pump(self) -> None:
        """Grant places to held requests in order, as long as a pod has room for the first."""
        while (ticket := self.queue.head()) is not None:
            now = self.clock()
            candidates = (u.candidate(now) for u in self._accepting(now))
            lease = self._lease([c for c in candidates if has_room(c, ticket.tokens)], ticket.tokens)
            if lease is None:
                return
            self.queue.remove(ticket)
            ticket.granted.set_result(lease)

    def fail_held(self, error: ApiError) -> None:
        """One clear answer for everyone who waits."""
        while (ticket := self.queue.head()) is not None:
            self.queue.remove(ticket)
            ticket.granted.set_exception(error)

    def unavailable(self, why: str) -> ApiError:
        """503 with the seconds until a replica that starts now, or has been starting, is likely ready."""
        left = self.deployment.cold_start - self.queue.oldest(self.clock())
        return ApiError(
            503,
            f"The model {self.deployment.models[0]!r} cannot answer now: {why}. Try again in a moment.",
            code="model_unavailable",
            retry_after=left,
        )

    def _without_replica(self) -> ApiError:
        """What is answered where nobody will start a replica; nobody knows when a suspended model comes back."""
        if not self.deployment.suspended:
            return self.unavailable("no replica is ready")
        return ApiError(503, f"The model {self.deployment.models[0]!r} is suspended.", code="model_suspended")

    def traffic(self) -> ModelTraffic:
        """What the operator is told."""
        return ModelTraffic(
            namespace=self.deployment.namespace,
            name=self.deployment.name,
            arrivals=self.arrivals,
            arrival_prompt_tokens=self.arrival_tokens,
            in_flight=self.in_flight,
            held=len(self.queue),
            held_prompt_tokens=self.queue.tokens,
            oldest_hold=self.queue.oldest(self.clock()),
            last_arrival=self.last_arrival,
            canary=self.tracks.traffic() if self.tracks else None,
        )

    def serve_by(self, deployment: Deployment) -> None:
        """Take over a new description; pods that are still there keep their counts."""
        self.deployment = deployment
        step = deployment.canary_step
        if step != (self.tracks.step if self.tracks else ""):
            self.tracks = Tracks(step) if step else None
        before = self.upstreams
        self.upstreams = {}
        for endpoint in deployment.endpoints:
            upstream = before.get(endpoint.url)
            # A new pod may get the address of an old one: nothing known of the old one is true of it.
            if upstream is None or upstream.endpoint.name != endpoint.name:
                upstream = Upstream(endpoint)
            upstream.endpoint = endpoint
            self.upstreams[endpoint.url] = upstream
        self.pump()
        if not deployment.hold and not self.available():
            self.fail_held(self._without_replica())

    def _lease(self, candidates: list[Candidate], tokens: int) -> Lease | None:
        stable = [c for c in candidates if not self.upstreams[c.key].endpoint.canary]
        canary = [c for c in candidates if self.upstreams[c.key].endpoint.canary]
        track = split(stable, canary, self.deployment.canary_percent, self.random)
        choice = route(track, Ask(tokens), Policy(), self.random)
        if choice is None:
            return None
        upstream = self.upstreams[choice.candidate.key]
        upstream.sent(tokens)
        self.in_flight += 1
        tally = None
        if self.tracks is not None:
            tally = self.tracks.canary if upstream.endpoint.canary else self.tracks.stable
        return Lease(self, upstream, tokens, tally)

    def _accepting(self, now: float) -> Iterator[Upstream]:
        """The pods that may be sent requests; those of a canary without a share may not."""
        canary = self.deployment.canary_percent > 0
        return (u for u in self.upstreams.values() if u.accepts(now) and (canary or not u.endpoint.canary))


class Fleet:
    """All LLMDeployments the gateway serves."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._bounds = bounds
        self._clock = clock
        self._random = random
        self._table = Table()
        self._backends: dict[Key, Backend] = {}

    def update(self, table: Table) -> None:
        """Take over a new table. Requests held for a deployment that is gone get one clear answer."""
        self._table = table
        for key in self._backends.keys() - table.deployments.keys():
            gone = self._backends.pop(key)
            gone.fail_held(ApiError(503, f"The model {gone.deployment.models[0]!r} was removed.", code="model_removed"))
        for key, deployment in table.deployments.items():
            backend = self._backends.get(key)
            if backend is None:
                queue: HoldQueue[Lease] = HoldQueue(self._bounds)
                backend = self._backends[key] = Backend(deployment, queue, self._clock, self._random)
            backend.serve_by(deployment)

    def find(self, model: str) -> Backend | None:
        """The deployment that serves a model name."""
        deployment = self._table.find(model)
        return self._backends.get(deployment.key) if deployment else None

    def deployments(self) -> Iterable[Deployment]:
        """All deployments, in the order of their names."""
        return self._table.deployments.values()

    def backends(self) -> Iterable[Backend]:
        """All deployments at run time."""
        return tuple(self._backends.values())

    def upstreams(self) -> Iterator[tuple[Backend, Upstream]]:
        """Every pod of every deployment."""
        for backend in self.backends():
            for upstream in tuple(backend.upstreams.values()):
                yield backend, upstream
