"""The rate term, in a small closed loop: it knows what a replica does, and asks for replicas before anything waits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.autoscale.cluster import Cluster

from octavo_operator.autoscale.estimators import cold_start
from octavo_operator.autoscale.state import window
from octavo_operator.autoscale.types import Learned, ScalingSettings

SETTINGS = ScalingSettings(min_replicas=1, max_replicas=20)


def run(cluster, lam, seconds, **how):
    return [cluster.tick(lam, **how) for _ in range(int(seconds / 2))]


def test_the_capacity_of_a_replica_is_learned_from_a_light_load():
    cluster = Cluster(SETTINGS)
    run(cluster, 0.3 * cluster.capacity(), 300)
    assert cluster.state.learned.capacity.rate == pytest.approx(cluster.capacity(), rel=0.15)


def test_a_rising_load_gets_its_replicas_before_anything_waits():
    cluster = Cluster(SETTINGS)
    one = cluster.capacity()
    run(cluster, 0.4 * one, 600)
    reasons, waits = set(), []
    for minute in range(40):
        before = cluster.current
        for decision in run(cluster, (0.4 + 0.1 * minute) * one, 60):
            if decision.desired > before:
                reasons.add(decision.reason)
            before = decision.desired
            waits.append(cluster.held + sum(server.q for server in cluster.servers))
    assert reasons == {"ArrivalRate"}
    assert max(waits) < 4
    assert 5 <= cluster.current <= 7


def test_a_falling_load_gives_them_back():
    cluster = Cluster(replace(SETTINGS, min_replicas=5, down_stabilization=120, down_max_step=2))
    one = cluster.capacity()
    run(cluster, 4.0 * one, 200)
    cluster.settings = replace(cluster.settings, min_replicas=1)
    run(cluster, 1.5 * one, 900)
    assert cluster.current in (2, 3)


def test_the_first_look_knows_nothing_and_asks_for_nothing():
    cluster = Cluster(SETTINGS)
    assert cluster.tick(100.0).demand.rate == 0.0


@pytest.mark.parametrize("restarted", [False, True])
def test_a_gateway_that_counts_backwards_or_starts_anew_makes_no_demand(restarted):
    cluster = Cluster(SETTINGS)
    lam = 0.5 * cluster.capacity()
    run(cluster, lam, 600, steady=True)
    before = cluster.state.learned.arrivals.fast
    cluster.arrived = 10 if restarted else cluster.arrived - 1000
    cluster.gateway_start += restarted
    decisions = run(cluster, lam, 60, steady=True)
    assert {decision.desired for decision in decisions} == {1}
    assert cluster.state.learned.arrivals.fast == pytest.approx(before, rel=0.1)


def test_without_gateways_the_pods_count():
    cluster = Cluster(SETTINGS)
    lam = 0.8 * cluster.capacity()
    observe = cluster.observe
    cluster.observe = lambda: replace(observe(), gateways=())
    run(cluster, lam, 300)
    assert cluster.tick(lam).demand.arrivals == pytest.approx(lam, rel=0.2)


def test_a_cold_start_takes_as_long_as_nine_of_ten_did():
    starts = tuple(float(seconds) for seconds in (70, 10, 30, 20, 90, 50, 40, 100, 60, 80))
    assert cold_start(SETTINGS, Learned(cold_starts=starts)) == 90.0
    assert cold_start(SETTINGS, Learned(cold_starts=(7.0,))) == 7.0
    assert cold_start(replace(SETTINGS, cold_start=33.0), Learned()) == 33.0


def test_the_window_of_scale_down_is_no_shorter_than_a_start_was_seen_to_take():
    settings = replace(SETTINGS, down_stabilization=120.0, cold_start=300.0)
    assert window(settings, Learned(cold_starts=(200.0,))) == 200.0
    assert window(settings, Learned(cold_starts=(60.0,))) == 120.0
    assert window(settings, Learned()) == 120.0, "a guess makes it no longer"


def test_cold_starts_are_measured():
    cluster = Cluster(replace(SETTINGS, cold_start=10.0), start=80.0)
    assert cluster.tick(1.0).demand.cold_start == 10.0
    cluster.settings = replace(cluster.settings, min_replicas=3)
    run(cluster, 1.0, 100)
    assert cluster.tick(1.0).demand.cold_start == pytest.approx(80.0, abs=4)
