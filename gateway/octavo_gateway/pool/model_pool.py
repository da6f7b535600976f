"""One LLMDeployment at run time: gives requests places on its replicas, or holds them until one is free.

Calls for one request: `reserve`, or `hold` until its turn comes. While it is at a replica: `answered` and the events
of its reservation. In the end: `settle` with its outcome. One event loop owns a pool; no function here awaits.
"""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections.abc import Callable, Collection, Iterable, Sequence

from octavo_gateway.api.errors import ApiError
from octavo_gateway.discovery.endpoints import Deployment
from octavo_gateway.pool import refusals
from octavo_gateway.pool.accounting import Accounting
from octavo_gateway.pool.pool_adapters import PoolAdapters, failure_of
from octavo_gateway.pool.replica import Replica, replicas_at
from octavo_gateway.pool.replica_selector import GATEWAYS, ReplicaSelector
from octavo_gateway.pool.report_intake import ReportIntake
from octavo_gateway.pool.reservation import Ending, RequestOutcome, Reservation
from octavo_gateway.pool.retry_budget import RetryBudget
from octavo_gateway.pool.traffic import TrafficCounters, traffic_report
from octavo_gateway.queueing.dispatch_rate import DispatchRate
from octavo_gateway.queueing.dispatcher import Dispatcher
from octavo_gateway.queueing.hold_queue import PLAIN, HoldQueue, QueuedRequest, RequestAttributes
from octavo_gateway.routing.candidate import Choice
from octavo_gateway.routing.output_length import OutputLengthEstimator
from octavo_gateway.routing.prefix_index import PrefixIndex
from octavo_gateway.routing.prompt_features import Prompt
from octavo_gateway.routing.router import Router
from octavo_protocol.load import LoadReport, ModelTraffic


class ModelPool:
    """One LLMDeployment. `clock` returns monotonic seconds, `unix` Unix seconds for timestamps in reports.

    `named` is called with the names of its adapters whenever they change.
    """

    def __init__(
        self,
        deployment: Deployment,
        queue: HoldQueue[Reservation],
        index: PrefixIndex,
        clock: Callable[[], float],
        random: Callable[[], float],
        unix: Callable[[], float] | None = None,
        gateways: int = GATEWAYS,
        named: Callable[[tuple[str, ...]], object] = lambda _: None,
    ) -> None:
        self.deployment = deployment
        self.queue = queue
        self.clock = clock
        self.replicas: dict[str, Replica] = {}
        self.retries = RetryBudget()
        self.counters = TrafficCounters(unix or clock)
        self.lengths = OutputLengthEstimator()
        self.router = Router(index, random)
        self.adapters = PoolAdapters()
        self.selector = ReplicaSelector(self.router, self.lengths, self.adapters, gateways)
        self.reports = ReportIntake(self.router, self.lengths)
        self.accounting = Accounting(index, self.lengths, queue)
        self._dispatcher: Dispatcher[Reservation] = Dispatcher(queue)
        self._dispatch_rate = DispatchRate()
        self._named = named
        # Held requests that need no engine: the first replica that accepts requests gets them, whatever is before them.
        self._reading: list[QueuedRequest[Reservation]] = []

    @property
    def in_flight(self) -> int:
        """Number of requests that have a place on a replica."""
        return len(self.accounting)

    def available(self, adapter: str = "") -> bool:
        """True if any replica accepts requests now, for an adapter or for the base model."""
        replicas, now = self.replicas.values(), self.clock()
        return any(True for _ in self.selector.accepting(self.deployment, replicas, now, adapter))

    def prompt(
        self, text: bytes, tenant: str, salt: bytes, session: str | None, cache_key: bytes = b"", adapter: str = ""
    ) -> Prompt:
        """The features that routing needs, from the prompt's text, tenant, salt and value of the session header.

        `cache_key`: the client's `prompt_cache_key`, b"" without one. `adapter`: no prefix of one adapter is one of
        another, because a replica computes other KV for it.
        """
        # Neither part of the key contains a slash.
        caches = "/".join((*self.deployment.key, adapter)) if adapter else "/".join(self.deployment.key), tenant, salt
        return self.router.prompt(text, self.deployment.policy.strategy, caches, session, cache_key)

    def reserve(
        self, prompt: Prompt, attributes: RequestAttributes = PLAIN, refused_by: Collection[Replica] = ()
    ) -> Reservation | None:
        """A place on a replica at once; None if none accepts, all are full, or other requests wait already.

        Replicas in `refused_by` are chosen only if no other one accepts requests. A deployment that does not hold
        ignores headroom: the request then waits in the replica's own queue. A request that needs no engine ignores
        headroom and queue.
        """
        now, replicas = self.clock(), self._without(refused_by, attributes.adapter)
        if not attributes.in_engine:
            found = self.selector.select_any(self.deployment, replicas, now, attributes.adapter)
            return self._reserved(found, prompt, attributes, now)
        if self.queue.in_line:
            return None
        if self.deployment.hold:
            choice, _ = self.selector.select_with_headroom(self.deployment, prompt, attributes, replicas, now)
        else:
            choice = self.selector.select(self.deployment, prompt, attributes, replicas, now)
        return self._reserved(choice, prompt, attributes, now)

    def _without(self, refused_by: Collection[Replica], adapter: str) -> Collection[Replica]:
        """All replicas but these, if one of the rest accepts requests; else all."""
        if not refused_by:
            return self.replicas.values()
        others = [replica for replica in self.replicas.values() if replica not in refused_by]
        accepting = self.selector.accepting(self.deployment, others, self.clock(), adapter)
        return others if any(True for _ in accepting) else self.replicas.values()

    def reserve_at(self, name: str, url: str, prompt: Prompt, attributes: RequestAttributes) -> Reservation | None:
        """A place on the replica that stores the response to which a request refers, full or not.

        None if it is gone or does not accept requests. A draining replica still answers requests without engine.
        """
        now, replica = self.clock(), self.replicas.get(url)
        if replica is None or replica.endpoint.name != name:
            return None
        if attributes.in_engine and not replica.accepts(now):
            return None
        (cached,) = self.router.cached(prompt, [url])
        return self._reserved(Choice(replica.candidate(now, cached), "stored"), prompt, attributes, now)

    def hold(self, size: int, prompt: Prompt, attributes: RequestAttributes = PLAIN) -> QueuedRequest[Reservation]:
        """A place in the queue. Raises `ApiError` 503 if waiting is pointless, 503 or 429 if the queue is full."""
        if (error := self._pointless(attributes.adapter)) is not None:
            raise error
        granted: Future[Reservation] = get_running_loop().create_future()
        request = QueuedRequest(size, prompt.tokens, self.clock(), granted, prompt, attributes)
        self._dispatcher.offer(request, self._no_room)
        if not attributes.in_engine:
            self._reading.append(request)
        return request

    def cancel(self, request: QueuedRequest[Reservation]) -> None:
        """Remove a request from the queue; a place granted in the same moment is settled."""
        granted = self._dispatcher.cancel(request)
        if granted is None:
            self.dispatch(())
        else:
            self.settle(RequestOutcome(granted, Ending.NOT_SENT))

    def answered(self, reservation: Reservation, prompt_header: str | None) -> None:
        """A replica answers. `prompt_header` maps the prompt to blocks; None without this header."""
        # An answer to an earlier request does not end the back-off: a draining replica finishes its running requests.
        if reservation.refusals == reservation.replica.refusals:
            reservation.replica.end_backoff()
        if prompt_header is not None:
            self.reports.take_prompt(reservation.replica, reservation.prompt, prompt_header)

    def settle(self, outcome: RequestOutcome) -> None:
        """Take a place back, however its request ended; the next held request may get it.

        Every reservation ends here. A second call has no effect.
        """
        if self.accounting.settle(outcome, self.clock()):
            self.dispatch((outcome.reservation.replica,))

    def dispatch(self, changed: Sequence[Replica] | None = None) -> None:
        """Give places to held requests in order, as long as a replica has headroom for the first.

        `changed`: the replicas that may accept more than at the last call, None for all. If all were full for a
        request, only the changed ones are searched for it again. So with many replicas the report of one costs little.
        Requests that wait for an adapter are looked at only when all replicas may have changed.
        """
        now = self.clock()
        if changed is None:
            self._dispatch_parked()
        if self._reading:
            self._dispatch_reading(now)

        def search(request: QueuedRequest[Reservation], known: float | None) -> tuple[Reservation | None, float]:
            replicas: Iterable[Replica] = self.replicas.values()
            largest = 0.0
            if changed is not None and known is not None:
                replicas, largest = [one for one in changed if self.replicas.get(one.url) is one], known
            prompt, attributes = request.prompt, request.attributes
            choice, largest = self.selector.select_with_headroom(
                self.deployment, prompt, attributes, replicas, now, largest
            )
            return self._reserved(choice, prompt, attributes, now), largest

        self._dispatcher.dispatch(search, self._parks, now)

    def fail_held(self, error: ApiError) -> None:
        """Answer all held requests with an error."""
        self._dispatcher.fail(error)

    def update(self, deployment: Deployment) -> None:
        """Adopt a changed deployment; replicas that still exist keep their counts."""
        self.deployment = deployment
        self.accounting.begin_step(deployment.canary_step)
        before, self.replicas = self.replicas, replicas_at(deployment.endpoints, self.replicas)
        for url in before.keys() | self.replicas.keys():
            old = before.get(url)
            if old is not self.replicas.get(url):
                self.router.index.forget(url)
                self.adapters.reported(old.adapters if old else None, None)
        self.adapters.announced = deployment.adapters
        self._named(self.adapters.names)
        self.dispatch()
        if len(self.queue) and (error := self._pointless()) is not None:
            self.fail_held(error)

    def take_report(self, replica: Replica, report: LoadReport, after: int) -> None:
        """Take a replica's report, which lists changes of its cache after sequence number `after`."""
        before = replica.adapters
        if not self.reports.take(replica, report, after, tuple(self.replicas.values()), self.clock()):
            return
        if replica.adapters is not before:
            self.adapters.reported(before, replica.adapters)
            self._named(self.adapters.names)
        self.dispatch((replica,))

    def traffic(self) -> ModelTraffic:
        """The traffic of this deployment, for the operator."""
        return traffic_report(
            self.deployment,
            self.counters,
            self.replicas.values(),
            self.queue,
            self.accounting.canary,
            in_flight=self.in_flight,
            now=self.clock(),
        )

    def unavailable(self, why: str, adapter: str = "") -> ApiError:
        """Error 503 with the estimated seconds until one more request is accepted."""
        return refusals.unavailable(self._model(adapter), why, self._retry_after())

    def held_too_long(self, seconds: float, adapter: str = "") -> ApiError:
        """Error 503 of a request that was held for so many seconds."""
        if adapter and self.available() and not self.available(adapter):
            return self.unavailable(f"no replica has the adapter ready within {seconds:g} s", adapter)
        return self.unavailable(f"no replica became free within {seconds:g} s", adapter)

    def _dispatch_reading(self, now: float) -> None:
        waiting = [request for request in self._reading if not request.granted.done()]
        self._reading = []
        for request in waiting:
            adapter = request.attributes.adapter
            choice = self.selector.select_any(self.deployment, self.replicas.values(), now, adapter)
            reservation = self._reserved(choice, request.prompt, request.attributes, now)
            if reservation is None:
                self._reading.append(request)
            else:
                self._dispatcher.grant(request, reservation)

    def _reserved(
        self, choice: Choice | None, prompt: Prompt, attributes: RequestAttributes, now: float
    ) -> Reservation | None:
        """A place on the chosen replica; None without a choice."""
        if choice is None:
            return None
        if attributes.in_engine:
            self._dispatch_rate.sent(now)
        return self.accounting.reserve(self.replicas[choice.candidate.key], choice, prompt, attributes)

    def _retry_after(self) -> float:
        """Estimated seconds until a starting replica is ready and all waiting requests have been sent."""
        now = self.clock()
        start = 0.0 if self.available() else self.deployment.cold_start - self.queue.oldest(now)
        return max(0.0, start) + self._dispatch_rate.time_for(len(self.queue) + 1, now)

    def _no_room(self, full: bool) -> ApiError:
        """The error of a request without a place in the queue: the queue is full, or its key's share is used up."""
        refuse = refusals.queue_full if full else refusals.share_used
        # The queue is that of the model and all its adapters, and a displaced request may be for another one.
        return refuse(self._model(""), len(self.queue), self._retry_after())

    def _model(self, adapter: str) -> str:
        """The name of the model in messages."""
        return adapter or self.deployment.models[0]

    def _parks(self, request: QueuedRequest[Reservation]) -> bool:
        """True if a request waits for its adapter: replicas accept requests, but none offers it."""
        adapter = request.attributes.adapter
        return bool(adapter) and self.available() and not self.available(adapter)

    def _dispatch_parked(self) -> None:
        """Requests whose adapter is offered now have a turn again; those that wait in vain get an error."""
        parked = self.queue.parked()
        for adapter in {request.attributes.adapter for request in parked}:
            error = self._pointless(adapter)
            if error is None and not self.available(adapter):
                continue
            for request in parked:
                if request.attributes.adapter != adapter:
                    continue
                if error is None:
                    self.queue.unpark(request)
                else:
                    self._dispatcher.refuse(request, error)

    def _pointless(self, adapter: str = "") -> ApiError | None:
        """The error if waiting is pointless: the adapter is unusable or gone, or no replica accepts or can start."""
        if adapter and self.adapters.has_failed(adapter):
            return refusals.adapter_failed(adapter, failure_of(adapter, self.replicas.values()))
        if adapter and adapter not in self.adapters.names:
            return refusals.adapter_removed(adapter)
        if (self.deployment.hold and not self.deployment.stuck) or self.available(adapter):
            return None
        if adapter and self.available():
            return self.unavailable("no replica has the adapter ready", adapter)
        return refusals.without_replica(self.deployment, self._model(adapter), self._retry_after())
