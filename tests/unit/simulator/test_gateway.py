"""The gateway's own objects under simulated time."""

from octavo_gateway.queueing.hold_queue import Bounds
from octavo_gateway.routing.router import PREFIX_AWARE, SESSION
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
        lease = made.lease(SimulatedRequest(number, TraceRequest(0.0, 100, 1, prefix=number % 20), 0.0))
        assert lease is not None
        where.setdefault(number % 20, set()).add(lease.upstream.endpoint.name)
        lease.release()
    assert all(len(pods) == 1 for pods in where.values())
    assert set.union(*where.values()) == {"a", "b", "c"}


def test_tokens_that_passed_do_not_count_as_growth_to_come() -> None:
    """Without this a pod of long answers looks full at half of its pool, and requests are held for nothing."""
    lease = gateway().lease(SimulatedRequest(0, TraceRequest(0.0, 100, 50), 0.0))
    assert lease is not None
    expected = lease.left
    assert lease.upstream.growth == expected > 100
    for _ in range(2):
        streamed(lease, 100)
        assert lease.upstream.growth == lease.left == expected - 100
    streamed(lease, 5000)
    assert lease.upstream.growth == lease.left == 0.0


def test_what_a_pod_has_cached_is_known_after_its_report() -> None:
    made, pod = gateway(), SimulatedPod(PROFILE, 0.0)
    first = SimulatedRequest(0, TraceRequest(0.0, 6400, 1, prefix=3, shared=6400), 0.0)
    pod.submit(first, 0.0)
    pod.advance(10.0)
    lease = made.lease(first)
    assert lease is not None
    assert lease.matched == 0
    lease.release()
    made.reported("a", pod, pod.report(10.0))
    again = made.lease(SimulatedRequest(1, TraceRequest(9.0, 6400, 1, prefix=3, shared=6400), 9.0))
    assert again is not None
    assert again.matched > 6000
