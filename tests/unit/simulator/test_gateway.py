"""The gateway's own objects under simulated time."""

from octavo_gateway.pool.reservation import Ending
from octavo_gateway.queueing.hold_queue import Bounds
from octavo_gateway.routing.candidate import PREFIX_AWARE, SESSION
from octavo_simulator.gateway import SimulatedGateway, streamed
from octavo_simulator.job import SimulatedRequest
from octavo_simulator.pod import SimulatedPod
from octavo_simulator.scenario import Promise, Scenario
from octavo_simulator.steptime import PROFILES
from octavo_simulator.trace import Trace, TraceRequest

PROFILE = PROFILES["8b-24gb"]


def gateway(*pods: str, strategy: str = PREFIX_AWARE) -> SimulatedGateway:
    scenario = Scenario("s", Trace("t", (), 1.0), PROFILE, Promise(1.0, 0.1), gateways=1, strategy=strategy)
    made = SimulatedGateway(Bounds(), lambda: 10.0, lambda: 0.5, [], scenario)
    made.serve(pods or ["a"])
    return made


def test_a_session_stays_with_its_pod_and_sessions_spread() -> None:
    made, where = gateway("a", "b", "c", strategy=SESSION), {}
    for number in range(60):
        job = SimulatedRequest(number, TraceRequest(0.0, 100, 1, prefix=number % 20), 0.0)
        reservation = made.reserve(job)
        assert reservation is not None
        where.setdefault(number % 20, set()).add(reservation.replica.endpoint.name)
        made.settle(job, reservation, Ending.FINISHED)
    assert all(len(pods) == 1 for pods in where.values())
    assert set.union(*where.values()) == {"a", "b", "c"}


def test_tokens_that_passed_do_not_count_as_growth_to_come() -> None:
    """Without this a pod of long answers looks full at half of its pool, and requests are held for nothing."""
    reservation = gateway().reserve(SimulatedRequest(0, TraceRequest(0.0, 100, 50), 0.0))
    assert reservation is not None
    expected = reservation.in_flight.left
    assert reservation.replica.load.growth == expected > 100
    for _ in range(2):
        streamed(reservation, 100)
        assert reservation.replica.load.growth == reservation.in_flight.left == expected - 100
    streamed(reservation, 5000)
    assert reservation.replica.load.growth == reservation.in_flight.left == 0.0


def test_what_a_pod_has_cached_is_known_after_its_report() -> None:
    made, pod = gateway(), SimulatedPod(PROFILE, 0.0)
    first = SimulatedRequest(0, TraceRequest(0.0, 6400, 1, prefix=3, shared=6400), 0.0)
    pod.submit(first, 0.0)
    pod.advance(10.0)
    reservation = made.reserve(first)
    assert reservation is not None
    assert reservation.matched == 0
    made.settle(first, reservation, Ending.FINISHED)
    made.reported("a", pod, pod.report(10.0))
    again = made.reserve(SimulatedRequest(1, TraceRequest(9.0, 6400, 1, prefix=3, shared=6400), 9.0))
    assert again is not None
    assert again.matched > 6000
