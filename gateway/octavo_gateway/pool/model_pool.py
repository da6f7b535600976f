"""One LLMDeployment at run time: requests get places on its replicas, or wait for one, and give them back.

The way of a request: `reserve`, or `hold` until its turn comes; while it is at a replica `answered` and the events of
its reservation; `settle` with its outcome. One event loop owns a pool; nothing here awaits.
"""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections.abc import Callable, Iterable, Sequence

from octavo_gateway.discovery.endpoints import Deployment
from octavo_gateway.openai import ApiError
from octavo_gateway.pool import refusals
from octavo_gateway.pool.accounting import Accounting
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
    """One LLMDeployment. `clock` gives seconds that never jump, `unix` the time of day for others."""

    def __init__(
        self,
        deployment: Deployment,
        queue: HoldQueue[Reservation],
        index: PrefixIndex,
        clock: Callable[[], float],
        random: Callable[[], float],
        unix: Callable[[], float] | None = None,
        gateways: int = GATEWAYS,
    ) -> None:
        self.deployment = deployment
        self.queue = queue
        self.clock = clock
        self.replicas: dict[str, Replica] = {}
        self.retries = RetryBudget()
        self.counters = TrafficCounters(unix or clock)
        self.lengths = OutputLengthEstimator()
        self.router = Router(index, random)
        self.selector = ReplicaSelector(self.router, self.lengths, gateways)
        self.reports = ReportIntake(self.router, self.lengths)
        self.accounting = Accounting(index, self.lengths, queue)
        self._dispatcher: Dispatcher[Reservation] = Dispatcher(queue)
        self._dispatch_rate = DispatchRate()

    @property
    def in_flight(self) -> int:
        """Requests that have a place on a replica."""
        return len(self.accounting)

    def available(self) -> bool:
        """Whether any replica accepts requests now."""
        return any(True for _ in self.selector.accepting(self.deployment, self.replicas.values(), self.clock()))

    def prompt(self, text: bytes, tenant: str, salt: bytes, session: str | None) -> Prompt:
        """What routing needs of a request: its prompt's text, whose it is, and the value of the session header."""
        caches = "/".join(self.deployment.key), tenant, salt
        return self.router.prompt(text, self.deployment.policy.strategy, caches, session)

    def reserve(self, prompt: Prompt, attributes: RequestAttributes = PLAIN) -> Reservation | None:
        """A place on a replica at once; None when none accepts, all are full, or others have waited longer.

        Where nothing may be held, a full replica's own queue has to do.
        """
        if len(self.queue):
            return None
        now, replicas = self.clock(), self.replicas.values()
        if self.deployment.hold:
            choice, _ = self.selector.select_with_headroom(self.deployment, prompt, attributes, replicas, now)
        else:
            choice = self.selector.select(self.deployment, prompt, attributes, replicas, now)
        return self._reserved(choice, prompt, attributes, now)

    def hold(self, size: int, prompt: Prompt, attributes: RequestAttributes = PLAIN) -> QueuedRequest[Reservation]:
        """A place in the queue. Raises `ApiError` 503 when the deployment does not hold, 503 or 429 when it is full."""
        if self._in_vain():
            raise refusals.without_replica(self.deployment, self._retry_after())
        granted: Future[Reservation] = get_running_loop().create_future()
        request = QueuedRequest(size, prompt.tokens, self.clock(), granted, prompt, attributes)
        self._dispatcher.offer(request, self._no_room)
        return request

    def cancel(self, request: QueuedRequest[Reservation]) -> None:
        """Leave the queue; a place that was granted in the same moment is settled."""
        granted = self._dispatcher.cancel(request)
        if granted is None:
            self.dispatch(())
        else:
            self.settle(RequestOutcome(granted, Ending.NOT_SENT))

    def answered(self, reservation: Reservation, prompt_header: str | None) -> None:
        """A replica answers; the header says which blocks stand behind the prompt, None where it does not."""
        reservation.replica.trust()
        if prompt_header is not None:
            self.reports.take_prompt(reservation.replica, reservation.prompt, prompt_header)

    def settle(self, outcome: RequestOutcome) -> None:
        """Take a place back, however its request ended; the next held request may have it.

        The one way in which a reservation ends. A second time nothing happens.
        """
        if self.accounting.settle(outcome, self.clock()):
            self.dispatch((outcome.reservation.replica,))

    def dispatch(self, changed: Sequence[Replica] | None = None) -> None:
        """Give places to held requests in order, as long as a replica has room for the first.

        `changed`: the replicas that may take more than at the last call, None for any. Once all were found full for a
        request only these are looked at for it, so that with many replicas a report of one costs little.
        """
        now = self.clock()

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

        self._dispatcher.dispatch(search, now)

    def fail_held(self, error: ApiError) -> None:
        """Answer all held requests with an error."""
        self._dispatcher.fail(error)

    def update(self, deployment: Deployment) -> None:
        """Take over a new description; replicas that are still there keep their counts."""
        self.deployment = deployment
        self.accounting.begin_step(deployment.canary_step)
        before, self.replicas = self.replicas, replicas_at(deployment.endpoints, self.replicas)
        for url in before.keys() | self.replicas.keys():
            if before.get(url) is not self.replicas.get(url):
                self.router.index.forget(url)
        self.dispatch()
        if len(self.queue) and self._in_vain():
            self.fail_held(refusals.without_replica(self.deployment, self._retry_after()))

    def take_report(self, replica: Replica, report: LoadReport, after: int) -> None:
        """A replica's report came, asked for what changed in its cache after `after`."""
        if self.reports.take(replica, report, after, tuple(self.replicas.values()), self.clock()):
            self.dispatch((replica,))

    def traffic(self) -> ModelTraffic:
        """For the operator."""
        return traffic_report(
            self.deployment,
            self.counters,
            self.replicas.values(),
            self.queue,
            self.accounting.canary,
            in_flight=self.in_flight,
            now=self.clock(),
        )

    def unavailable(self, why: str) -> ApiError:
        """503 with the seconds until it is likely that one more request is taken."""
        return refusals.unavailable(self.deployment, why, self._retry_after())

    def _reserved(
        self, choice: Choice | None, prompt: Prompt, attributes: RequestAttributes, now: float
    ) -> Reservation | None:
        """A place on the replica that was chosen; None when none was."""
        if choice is None:
            return None
        self._dispatch_rate.sent(now)
        return self.accounting.reserve(self.replicas[choice.candidate.key], choice, prompt, attributes)

    def _retry_after(self) -> float:
        """Seconds until a replica that starts now, or has been starting, is ready and all that wait have been sent."""
        now = self.clock()
        start = 0.0 if self.available() else self.deployment.cold_start - self.queue.oldest(now)
        return max(0.0, start) + self._dispatch_rate.time_for(len(self.queue) + 1, now)

    def _no_room(self, full: bool) -> ApiError:
        """Why a request found no place in the queue: it is full, or full of requests of the same key."""
        refuse = refusals.queue_full if full else refusals.share_used
        return refuse(self.deployment, len(self.queue), self._retry_after())

    def _in_vain(self) -> bool:
        """Whether waiting for a replica makes no sense: none is being started, or none can start."""
        return (not self.deployment.hold or bool(self.deployment.stuck)) and not self.available()
