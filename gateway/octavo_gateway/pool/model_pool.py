"""One LLMDeployment at run time: its pods with what was sent to them, and its held requests.

One event loop owns it; nothing here awaits. Whoever changes what a pod can take (a report, an answer that ended, a new
table) calls for the held requests to be released, in order, as far as pods have room.
"""

from __future__ import annotations

import logging
from asyncio import Future, get_running_loop
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress

from octavo_common.virtual_token_counter import cost
from octavo_gateway.discovery.endpoints import Deployment
from octavo_gateway.openai import ApiError
from octavo_gateway.pool.replica import Replica, implausible
from octavo_gateway.pool.reservation import Reservation
from octavo_gateway.pool.retry_budget import RetryBudget
from octavo_gateway.queueing.dispatch_rate import DispatchRate
from octavo_gateway.queueing.hold_queue import PLAIN, HoldQueue, QueuedRequest, RequestAttributes
from octavo_gateway.routing import headroom, prompt_features
from octavo_gateway.routing.canary import Tracks, split
from octavo_gateway.routing.decaying_stats import DecayingRatio, Variation
from octavo_gateway.routing.prefix_index import DeltaError, PrefixIndex, reach
from octavo_gateway.routing.prompt_features import Prompt
from octavo_gateway.routing.router import LEAST_LOAD, ROUND_ROBIN, SESSION, Ask, route
from octavo_gateway.routing.step_cost import fit, paced
from octavo_protocol.load import LoadReport, ModelTraffic

log = logging.getLogger(__name__)

LEARN_SECONDS = 1.0
# A request between two reports counts for at most so many times the usual output.
MOST_LONGER = 8.0
# No pod ends more requests between two reports.
MOST_ENDED = 10_000
# Taken to be no longer than this share of the largest pool in the mean: at the start, before any answer has ended, all
# that was generated would be one answer.
MOST_OF_POOL = 0.25
# Taken to send to the same pods while nobody says how many there are.
GATEWAYS = 2


@dataclass(frozen=True, slots=True)
class _Searched:
    """A held request for which all pods were found full, and the most tokens that any of them takes."""

    ticket: QueuedRequest[Reservation]
    most: float


@dataclass(slots=True, eq=False)
class ModelPool:
    """One LLMDeployment at run time. `clock` gives seconds that never jump, `unix` the time of day for others.

    `gateways` send to its pods, as far as is known. `output` tokens an answer has in the mean; `varied` is the square
    of the coefficient of variation. `largest`: KV tokens of the largest pool that was reported. `searched`: what
    looking at all pods for a held request came to.
    """

    deployment: Deployment
    queue: HoldQueue[Reservation]
    clock: Callable[[], float]
    random: Callable[[], float]
    upstreams: dict[str, Replica] = field(default_factory=dict)
    arrivals: int = 0
    arrival_tokens: int = 0
    in_flight: int = 0
    turns: int = 0
    last_arrival: float = 0.0
    tracks: Tracks | None = None
    index: PrefixIndex = field(default_factory=PrefixIndex)
    bytes_per_token: DecayingRatio = field(default_factory=prompt_features.bytes_per_token)
    output: DecayingRatio = field(default_factory=lambda: DecayingRatio(128.0, 1, 10_000))
    largest: int = 0
    varied: Variation = field(default_factory=lambda: Variation(1000))
    disbelieved: dict[str, int] = field(default_factory=dict)
    pace: DispatchRate = field(default_factory=DispatchRate)
    retries: RetryBudget = field(default_factory=RetryBudget)
    gateways: int = GATEWAYS
    learned_at: float = float("-inf")
    unix: Callable[[], float] | None = None
    searched: _Searched | None = None

    @property
    def usual(self) -> float:
        """Tokens of an answer in the mean."""
        value = self.output.value
        return min(value, MOST_OF_POOL * self.largest) if self.largest else value

    def arrived(self, tokens: int) -> None:
        """Count an arrival."""
        self.arrivals += 1
        self.arrival_tokens += tokens
        self.wanted()

    def wanted(self) -> None:
        """Somebody asks for the model, whatever comes of it: it is not idle."""
        self.last_arrival = (self.unix or self.clock)()

    def available(self) -> bool:
        """Whether any pod accepts requests now."""
        now = self.clock()
        return any(True for _ in self._accepting(self.upstreams.values(), now))

    def prompt(self, text: bytes, tenant: str, salt: bytes, session: str | None) -> Prompt:
        """What routing needs of a request: its prompt's text, whose it is, and the value of the session header."""
        strategy = self.deployment.policy.strategy
        key = prompt_features.session_key(session) if strategy == SESSION else b""
        keys: tuple[bytes, ...] = ()
        conversation, answered = b"", 0
        if not key and strategy not in (LEAST_LOAD, ROUND_ROBIN):
            keys = prompt_features.prefix_keys(text, "/".join(self.deployment.key), tenant, salt)
            conversation, answered = prompt_features.turns(text, keys)
        tokens = max(1, int(len(text) / self.bytes_per_token.value))
        return Prompt(tokens, len(text), keys, conversation=conversation, answered=answered, session=key)

    def lease(self, prompt: Prompt, terms: RequestAttributes = PLAIN) -> Reservation | None:
        """A place on a pod at once; None when no pod accepts, all are full, or others have waited longer.

        Where nothing may be held, a full pod's own queue has to do.
        """
        if len(self.queue):
            return None
        now = self.clock()
        free = self._cached(prompt, self._accepting(self.upstreams.values(), now))
        if self.deployment.hold:
            free, _ = self._roomy(prompt, terms, free, now)
        return self._place(prompt, terms, free, now)

    def hold(self, size: int, prompt: Prompt, terms: RequestAttributes = PLAIN) -> QueuedRequest[Reservation]:
        """A place in the queue. Raises `ApiError` 503 when the deployment does not hold, 503 or 429 when it is full."""
        if self._in_vain():
            raise self._without_replica()
        granted: Future[Reservation] = get_running_loop().create_future()
        ticket = QueuedRequest(size, prompt.tokens, self.clock(), granted, prompt, terms)
        for gone in self.queue.displaced(ticket):
            self.queue.remove(gone)
            gone.granted.set_exception(self._crowded(full=gone.priority < terms.priority))
        if not self.queue.offer(ticket):
            raise self._crowded(full=not self.queue.crowding(terms.tenant))
        return ticket

    def withdraw(self, ticket: QueuedRequest[Reservation]) -> None:
        """Leave the queue; a place that was granted in the same moment goes back."""
        self.queue.remove(ticket)
        granted = ticket.granted
        if granted.done() and not granted.cancelled() and granted.exception() is None:
            granted.result().release()
        else:
            granted.cancel()
            self.pump(())

    def pump(self, changed: Sequence[Replica] | None = None) -> None:
        """Grant places to held requests in order, as long as a pod has room for the first.

        `changed`: the pods that may take more than at the last call, None for any. Once all were found full for a
        request only these are looked at for it, so that with many pods a report of one costs little.
        """
        now = self.clock()
        while (ticket := self.queue.head(now)) is not None:
            lease = self._turn(ticket, changed, now)
            if lease is None:
                return
            self.queue.remove(ticket)
            ticket.granted.set_result(lease)
        self.searched = None

    def _turn(
        self, ticket: QueuedRequest[Reservation], changed: Sequence[Replica] | None, now: float
    ) -> Reservation | None:
        """A place for the first of the queue; None when the pods are full."""
        pods: Iterable[Replica] = self.upstreams.values()
        most = 0.0
        if changed is not None and self.searched is not None and self.searched.ticket is ticket:
            most = self.searched.most
            pods = [pod for pod in changed if self.upstreams.get(pod.endpoint.url) is pod]
        known = self._cached(ticket.prompt, self._accepting(pods, now))
        free, most = self._roomy(ticket.prompt, ticket.terms, known, now, most)
        lease = self._place(ticket.prompt, ticket.terms, free, now)
        self.searched = _Searched(ticket, most) if lease is None else None
        return lease

    def fail_held(self, error: ApiError) -> None:
        """One clear answer for everyone who waits."""
        for ticket in self.queue:
            self.queue.remove(ticket)
            ticket.granted.set_exception(error)

    def unavailable(self, why: str) -> ApiError:
        """503 with the seconds until it is likely that one more request is taken."""
        return ApiError(
            503,
            f"The model {self.deployment.models[0]!r} cannot answer now: {why}. Try again in a moment.",
            code="model_unavailable",
            retry_after=self._patience(),
        )

    def _patience(self) -> float:
        """Seconds until a replica that starts now, or has been starting, is ready and those who wait have been sent."""
        now = self.clock()
        start = 0.0 if self.available() else self.deployment.cold_start - self.queue.oldest(now)
        return max(0.0, start) + self.pace.time_for(len(self.queue) + 1, now)

    def _crowded(self, *, full: bool) -> ApiError:
        """Why a request found no place in the queue: it is full, or full of requests of the same key."""
        if full:
            return self.unavailable(f"{len(self.queue)} requests are already held")
        return ApiError(
            429,
            f"This key has its share of the {len(self.queue)} requests that wait for {self.deployment.models[0]!r}.",
            code="rate_limit_exceeded",
            retry_after=self._patience(),
        )

    def _in_vain(self) -> bool:
        """Whether waiting for a replica makes no sense: nobody will start one, or none can start."""
        return (not self.deployment.hold or bool(self.deployment.stuck)) and not self.available()

    def _without_replica(self) -> ApiError:
        """What is answered where it makes none; nobody knows when a suspended model, or one that fails, comes back."""
        model = self.deployment.models[0]
        if self.deployment.suspended:
            return ApiError(503, f"The model {model!r} is suspended.", code="model_suspended")
        if self.deployment.stuck:
            why = f"The model {model!r} cannot start: {self.deployment.stuck}. Its operators have to act."
            return ApiError(503, why, code="model_failed", headers={"x-should-retry": "false"})
        return self.unavailable("no replica is ready")

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
            pods={u.endpoint.name: u.in_flight.tokens for u in self.upstreams.values() if u.in_flight.tokens},
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
                self.index.forget(endpoint.url)
                upstream = Replica(endpoint)
            upstream.endpoint = endpoint
            self.upstreams[endpoint.url] = upstream
        for url in before.keys() - self.upstreams.keys():
            self.index.forget(url)
        self.pump()
        if len(self.queue) and self._in_vain():
            self.fail_held(self._without_replica())

    def reported(self, upstream: Replica, report: LoadReport, after: int) -> None:
        """A pod's report came, asked for what changed in its cache after `after`."""
        url = upstream.endpoint.url
        if (wrong := implausible(report)) is not None:
            self.disbelieve(upstream, "load", wrong)
            return
        if upstream.restarted(report.start_time):
            self.index.forget(url)
        self.largest = max(self.largest, report.blocks_total * report.block_size)
        last, before = upstream.report, upstream.report_ask
        if not upstream.reported(report):
            self.complain(upstream, "steps", "the sums over its steps have shrunk or are no numbers")
        self._learn()
        if last is not None:
            self._hear_output(upstream, last, report, before)
        if report.cache is not None:
            try:
                self.index.reported(url, report.cache, after, report.blocks_total, upstream.asked_at)
            except DeltaError as error:
                self.complain(upstream, "cache", str(error))
                self.index.forget(url)
        self.pump((upstream,))

    def _hear_output(self, upstream: Replica, last: LoadReport, report: LoadReport, before: int) -> None:
        """How long answers are: what was generated between two reports, and how many ended.

        `before`: the number of the earlier one.
        """
        tokens, ended = report.generation_tokens - last.generation_tokens, report.requests - last.requests
        there = ended + last.running + last.waiting + report.running
        if tokens < 0 or not 0 <= ended <= MOST_ENDED or tokens > report.blocks_total * report.block_size * there:
            self.complain(
                upstream, "output", f"{tokens} tokens generated and {ended} requests ended since its last report"
            )
            return
        # Longer and shorter answers are believed step by step: one that lies must not hold everything, or nothing.
        upstream.grew(tokens / max(1, last.running, report.running), before)
        least, most = self.usual * ended / MOST_LONGER, MOST_LONGER * self.usual * there
        self.output.add(min(max(tokens, least), most), ended)

    def hear_length(self, tokens: int) -> None:
        """A whole answer had so many tokens. A single one, whatever it says, makes no difference."""
        self.varied.add(min(tokens, MOST_LONGER * self.usual))

    def _learn(self) -> None:
        """What steps cost, from those of all pods; once a second is enough."""
        if self.clock() - self.learned_at < LEARN_SECONDS:
            return
        self.learned_at = self.clock()
        common = fit(upstream.steps for upstream in self.upstreams.values())
        for upstream in self.upstreams.values():
            upstream.learned(paced(common, upstream.steps) if common else None)

    def disbelieve(self, upstream: Replica, kind: str, why: str) -> None:
        """A pod's report cannot be true: only the gateway's own counts are believed of it, until it says better."""
        upstream.doubted()
        self.index.forget(upstream.endpoint.url)
        self.complain(upstream, kind, why)

    def complain(self, upstream: Replica, kind: str, why: str, error: Exception | None = None) -> None:
        """Count what a pod says and cannot be; said in the log once for each pod and kind, with the error's trace."""
        self.disbelieved[kind] = self.disbelieved.get(kind, 0) + 1
        if upstream.complain(kind):
            log.warning(
                "what %s says of itself cannot be, and is left out: %s", upstream.endpoint.name, why, exc_info=error
            )

    def _cached(self, prompt: Prompt, pods: Iterable[Replica]) -> list[tuple[Replica, int]]:
        """Each of the pods with the prompt tokens that it has cached."""
        pods, per_token = list(pods), self.bytes_per_token.value
        depths = self.index.match(prompt.keys, [pod.endpoint.url for pod in pods])
        return [
            (pod, min(prompt.tokens, int(reach(depth) / per_token)) if depth else 0)
            for pod, depth in zip(pods, depths, strict=True)
        ]

    def _roomy(
        self,
        prompt: Prompt,
        terms: RequestAttributes,
        pods: Sequence[tuple[Replica, int]],
        now: float,
        most: float = 0.0,
    ) -> tuple[list[tuple[Replica, int]], float]:
        """Those of the pods that have room for a request, and the most that any takes; `most`: that others do."""
        usual = self.usual
        rooms = [pod.room(now, usual, self.gateways) for pod, _ in pods]
        most = max(most, headroom.largest(rooms))
        answers = headroom.AnswerLengths(self._output(terms), usual, self.varied.value)
        fits = headroom.roomy(rooms, prompt.tokens, answers, [cached for _, cached in pods], most)
        return list(compress(pods, fits)), most

    def _output(self, terms: RequestAttributes) -> float:
        """Tokens that a request will likely generate."""
        return self.usual if terms.most_output is None else min(self.usual, terms.most_output)

    def _place(
        self, prompt: Prompt, terms: RequestAttributes, free: Sequence[tuple[Replica, int]], now: float
    ) -> Reservation | None:
        """Choose one of the pods, each with what it has cached of the prompt; None when there is none."""
        output, per_token = self._output(terms), self.bytes_per_token.value
        if share := self.deployment.canary_percent:
            stable = [pair for pair in free if not pair[0].endpoint.canary]
            canary = [pair for pair in free if pair[0].endpoint.canary]
            free = split(stable, canary, share, self.random)
        candidates = [upstream.candidate(now, cached) for upstream, cached in free]
        ask = Ask(
            prompt.tokens,
            output,
            anchor=prompt.keys[0] if prompt.keys else b"",
            conversation=prompt.conversation,
            presumed=int(prompt.answered / per_token),
            session=prompt.session,
            turn=self.turns,
        )
        choice = route(candidates, ask, self.deployment.policy, self.random)
        if choice is None:
            return None
        self.turns += 1
        self.in_flight += 1
        upstream = self.upstreams[choice.candidate.key]
        uncached = prompt.tokens - choice.candidate.matched
        asks = upstream.sent(prompt.tokens, uncached)
        upstream.growth += output
        marks = self.index.sent(upstream.endpoint.url, prompt.keys)
        self.pace.sent(now)
        self.queue.choose(terms.tenant, cost(prompt.tokens, output))
        tally = None
        if self.tracks is not None:
            tally = self.tracks.canary if upstream.endpoint.canary else self.tracks.stable
        return Reservation(
            self,
            upstream,
            prompt,
            choice,
            uncached,
            asks,
            tally,
            tenant=terms.tenant,
            output=output,
            left=output,
            marks=marks,
        )

    def _accepting(self, pods: Iterable[Replica], now: float) -> Iterator[Replica]:
        """Those of the pods that may be sent requests; those of a canary without a share may not."""
        canary = self.deployment.canary_percent > 0
        return (pod for pod in pods if pod.accepts(now) and (canary or not pod.endpoint.canary))
