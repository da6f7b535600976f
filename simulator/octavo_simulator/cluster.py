"""Discrete-event simulation of the cluster: pods, gateways, lost samples, and the controller. Simulated time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import exp, inf
from random import Random

from octavo_gateway.pool.reservation import Ending, Reservation
from octavo_gateway.queueing.hold_queue import Bounds
from octavo_operator.autoscale.types import GatewaySample, Observation, Phase, PodSample
from octavo_protocol.load import LoadReport
from octavo_simulator.gateway import SimulatedGateway, streamed
from octavo_simulator.job import Outcome, SimulatedRequest
from octavo_simulator.pod import SimulatedPod
from octavo_simulator.scenario import Controller, ReplicaTarget, Scenario

# Seconds between the gateway's polls of a pod, and before the kubelet restarts a failed container.
POLL_SECONDS = 1.0
BACKOFF = 20.0
# The minimum interval of a gateway's wake calls to the operator for a deployment without pods.
WAKE_SECONDS = 1.0

_ENDINGS = {
    "finished": Ending.FINISHED,
    "rejected": Ending.REFUSED,
    "timeout": Ending.ABANDONED,
    "broken": Ending.BROKEN,
}

_Event = tuple[float, int, Callable[..., None], tuple[object, ...]]


@dataclass(slots=True, eq=False)
class Member:
    """One pod of the deployment, from creation to exit."""

    name: str
    created: float
    phase: Phase = "pending"
    pod: SimulatedPod | None = None
    ended: float = inf
    scheduled: float = -inf
    sample: tuple[float, LoadReport] | None = None
    reservations: dict[int, tuple[SimulatedRequest, Reservation]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SimulatedDecision:
    """One decision: the pods by phase, and the desired replicas."""

    at: float
    desired: int
    ready: int
    pending: int
    draining: int
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a simulation."""

    scenario: Scenario
    jobs: tuple[SimulatedRequest, ...]
    members: tuple[Member, ...]
    decisions: tuple[SimulatedDecision, ...]


def simulate(scenario: Scenario, controller: Controller, seed: int = 0) -> Run:
    """Replay the scenario's trace until every request has ended."""
    return _Cluster(scenario, controller, seed).run()


class _Cluster:
    def __init__(self, scenario: Scenario, controller: Controller, seed: int) -> None:
        self._scenario = scenario
        self._controller = controller
        self._now = 0.0
        # A separate random source for each purpose, so that one part's draws do not change those of another.
        self._starts, self._losses, self._routing, self._kills = (Random(f"{seed}/{i}") for i in range(4))
        self._seed = seed
        self._events: list[_Event] = []
        self._numbers = count()
        self._names = count()
        self._jobs = [
            SimulatedRequest(number, request, request.at, request.at + scenario.patience)
            for number, request in enumerate(scenario.trace.requests)
        ]
        self._open = len(self._jobs)
        self._members: dict[str, Member] = {}
        self._gone: list[Member] = []
        self._decisions: list[SimulatedDecision] = []
        self._replicas = scenario.initial
        self._woken = -inf
        self._decision_number = 0
        bounds = Bounds(seconds=scenario.patience)
        self._turns: list[tuple[SimulatedRequest, Reservation]] = []
        self._gateways = [
            SimulatedGateway(bounds, lambda: self._now, self._routing.random, self._turns, scenario)
            for _ in range(scenario.gateways)
        ]
        self._traffic: list[GatewaySample] = [GatewaySample(f"gateway-{i}") for i in range(scenario.gateways)]

    def run(self) -> Run:
        for _ in range(self._scenario.initial):
            self._make_ready(self._create(warm=True))
        if self._jobs:
            self._at(self._jobs[0].arrived, self._arrive, 0)
        for at in self._scenario.faults.kills:
            self._at(at, self._kill)
        self._at(0.0, self._decide_if_current, 0)
        end = self._scenario.trace.seconds
        events, turns = self._events, self._turns
        while events and (self._open or self._now < end):
            self._now, _, happen, what = heappop(events)
            happen(*what)
            if turns:
                self._send_granted()
        members = (*self._gone, *self._members.values())
        return Run(
            self._scenario,
            tuple(self._jobs),
            tuple(sorted(members, key=lambda m: (m.created, m.name))),
            tuple(self._decisions),
        )

    def _at(self, at: float, happen: Callable[..., None], *what: object) -> None:
        heappush(self._events, (at, next(self._numbers), happen, what))

    # Requests.

    def _arrive(self, number: int) -> None:
        if number + 1 < len(self._jobs):
            self._at(self._jobs[number + 1].arrived, self._arrive, number + 1)
        self._enter(self._jobs[number])

    def _enter(self, job: SimulatedRequest, *, again: bool = False) -> None:
        gateway = self._gateway(job)
        reservation = gateway.reserve(job, again=again)
        if reservation is not None:
            self._send(job, reservation)
        elif gateway.hold(job):
            self._at(job.deadline, self._late, job)
            if not self._members and self._now - self._woken >= WAKE_SECONDS:
                self._woken = self._now
                self._decide(wake=True)
        else:
            self._end(job, "rejected")

    def _gateway(self, job: SimulatedRequest) -> SimulatedGateway:
        return self._gateways[job.number % len(self._gateways)]

    def _send(self, job: SimulatedRequest, reservation: Reservation) -> None:
        member = self._members[reservation.replica.endpoint.name]
        self._progress(member)
        member.reservations[job.number] = (job, reservation)
        if member.pod is None or not member.pod.submit(job, self._now):
            self._end(job, "rejected", member)
        self._schedule(member)

    def _send_granted(self) -> None:
        """Send the held requests that the last event dispatched."""
        while self._turns:
            job, reservation = self._turns.pop(0)
            job.held += self._gateway(job).waited(job)
            self._send(job, reservation)

    def _late(self, job: SimulatedRequest) -> None:
        """Time out a request that is still held."""
        if job.outcome:
            return
        waited = self._gateway(job).give_up(job)
        if waited is not None:
            job.held += waited
            self._end(job, "timeout")

    def _end(self, job: SimulatedRequest, outcome: Outcome = "", member: Member | None = None) -> None:
        if outcome:
            job.outcome, job.ended = outcome, self._now
        self._open -= 1
        if member is not None:
            _, reservation = member.reservations.pop(job.number)
            self._gateway(job).settle(job, reservation, _ENDINGS[job.outcome])

    # Pods.

    def _progress(self, member: Member) -> None:
        # No step ends before `until`.
        if member.pod is not None and member.pod.until <= self._now and member.ended == inf:
            ended = member.pod.advance(self._now)
            for job in member.pod.answered():
                reservation = member.reservations[job.number][1]
                self._gateway(job).began(job, reservation, self._scenario.profile.block_size)
            for job in ended:
                self._end(job, member=member)

    def _schedule(self, member: Member) -> None:
        if member.pod is not None and member.scheduled != member.pod.until < inf:
            member.scheduled = member.pod.until
            self._at(member.pod.until, self._pod_event, member)

    def _pod_event(self, member: Member) -> None:
        if member.ended == inf and member.pod is not None and member.pod.until <= self._now:
            self._progress(member)
            self._schedule(member)
            self._leave_if_drained(member)

    def _create(self, *, warm: bool = False) -> Member:
        member = Member(f"pod-{next(self._names)}", self._now)
        self._members[member.name] = member
        if not warm:
            self._start(member)
        return member

    def _start(self, member: Member) -> None:
        scenario = self._scenario
        median = scenario.profile.start * (2 if self._now >= scenario.faults.slow_starts else 1)
        seconds = median * exp(self._starts.gauss(0.0, scenario.spread)) if scenario.spread else median
        failed = self._starts.random() < scenario.faults.failed_starts
        self._at(self._now + seconds, self._crash if failed else self._make_ready, member)

    def _crash(self, member: Member) -> None:
        if member.ended == inf:
            member.phase = "failed"
            self._at(self._now + BACKOFF, self._retry, member)

    def _retry(self, member: Member) -> None:
        if member.ended == inf:
            self._start(member)

    def _make_ready(self, member: Member) -> None:
        if member.ended < inf:
            return
        member.phase = "ready"
        number = int(member.name.removeprefix("pod-"))
        member.pod = SimulatedPod(self._scenario.profile, self._now, seed=self._seed * 100_003 + number)
        member.pod.cold_start = self._now - member.created
        self._publish()
        self._poll(member)

    def _publish(self) -> None:
        """Update the EndpointSlices: the pods for new requests."""
        ready = [member.name for member in self._members.values() if member.phase == "ready"]
        for gateway in self._gateways:
            gateway.serve(ready)

    def _poll(self, member: Member) -> None:
        """The gateways' poll of a pod, once a second."""
        if member.pod is None or member.phase != "ready" or member.ended < inf:
            return
        self._progress(member)
        if self._now >= self._scenario.faults.forget:
            member.pod.forget_prefixes()
        report = member.pod.report(self._now)
        for job, reservation in member.reservations.values():
            if reservation.in_flight.left > 0:
                streamed(reservation, member.pod.generated(job))
        for gateway in self._gateways:
            gateway.reported(member.name, member.pod, report)
        self._at(self._now + POLL_SECONDS, self._poll, member)

    def _drain(self, members: list[Member]) -> None:
        """Remove pods from the gateways at once; each exits when its last stream has ended."""
        for member in members:
            member.phase = "draining"
            if member.pod is not None:
                member.pod.draining = True
        self._publish()
        for member in members:
            self._leave_if_drained(member)

    def _leave_if_drained(self, member: Member) -> None:
        if member.phase == "draining" and (member.pod is None or member.pod.idle):
            self._exit(member)

    def _exit(self, member: Member) -> None:
        member.ended = self._now
        del self._members[member.name]
        self._gone.append(member)

    def _kill(self) -> None:
        """A node fails: streams break, requests without a token are retried, the ReplicaSet replaces the pod."""
        ready = [member for member in self._members.values() if member.phase == "ready"]
        if not ready:
            return
        member = self._kills.choice(ready)
        self._progress(member)
        self._send_granted()
        self._exit(member)
        self._publish()
        for job, reservation in tuple(member.reservations.values()):
            if job.first < inf:
                self._end(job, "broken", member)
                continue
            del member.reservations[job.number]
            self._gateway(job).settle(job, reservation, Ending.UNREACHED)
            self._restart(job)
        self._reconcile()

    def _restart(self, job: SimulatedRequest) -> None:
        job.hit = job.total = job.made = job.computed = job.reached = job.attached = 0
        self._enter(job, again=True)

    # Scaling.

    def _decide_if_current(self, number: int) -> None:
        # A wake call supersedes the scheduled decision.
        if number == self._decision_number:
            self._decide()

    def _decide(self, *, wake: bool = False) -> None:
        self._sample()
        self._send_granted()
        pods = tuple(
            PodSample(m.name, m.phase, m.created, m.sample[1] if m.sample else None, m.sample[0] if m.sample else 0.0)
            for m in self._members.values()
        )
        answer: ReplicaTarget = self._controller(
            Observation(self._replicas, pods, tuple(self._traffic), wake), self._now
        )
        least = self._scenario.least
        if self._now < self._scenario.grace:
            least = max(least, self._scenario.initial)
        self._replicas = min(max(answer.replicas, least), self._scenario.most)
        self._reconcile()
        phases = [m.phase for m in self._members.values()]
        self._decisions.append(
            SimulatedDecision(
                self._now,
                self._replicas,
                phases.count("ready"),
                phases.count("pending") + phases.count("failed"),
                phases.count("draining"),
                answer.reason,
            )
        )
        self._decision_number += 1
        self._at(self._now + answer.again, self._decide_if_current, self._decision_number)

    def _sample(self) -> None:
        """Poll pods and gateways; a lost poll leaves the previous sample."""
        faults = self._scenario.faults
        dark = faults.outage[0] <= self._now < faults.outage[1]
        for member in self._members.values():
            if member.pod is None or dark or (faults.loss and self._losses.random() < faults.loss):
                continue
            self._progress(member)
            member.sample = (self._now, member.pod.report(self._now))
        for i, gateway in enumerate(self._gateways):
            lost = dark or (faults.loss and self._losses.random() < faults.loss)
            traffic = None if lost else gateway.traffic()
            self._traffic[i] = GatewaySample(f"gateway-{i}", traffic, self._now, 0.0)

    def _reconcile(self) -> None:
        """Act as Deployment and ReplicaSet: create missing pods, drain surplus ones by lowest deletion cost."""
        active = [member for member in self._members.values() if member.phase != "draining"]
        for _ in range(self._replicas - len(active)):
            self._create()
        over = len(active) - self._replicas
        if over > 0:
            order = {"failed": 0, "pending": 0, "ready": 1}
            self._drain(sorted(active, key=lambda m: (order[m.phase], _work(m), -m.created))[:over])


def _work(member: Member) -> int:
    """Outstanding tokens of a pod: the deletion cost that the operator sets."""
    if member.sample is None:
        return 0
    report = member.sample[1]
    return report.blocks_pinned * report.block_size + report.waiting_tokens
