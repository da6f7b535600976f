"""Properties of decisions that are carried out: a small model of replicas under load, with cold starts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from msgspec.structs import replace as changed
from tests.support.tiers import scaled
from tests.unit.autoscale.cluster import Cluster

from octavo_operator.autoscale.policy import decide
from octavo_operator.autoscale.types import ScalingSettings

TARGETS = {"ttft": 2.0, "tpot": 0.05}


def run(cluster, lam, seconds, **how):
    return [cluster.tick(lam, **how) for _ in range(int(seconds / 2))]


def needed(cluster, lam):
    return lam / cluster.state.learned.capacity.rate


@pytest.mark.parametrize("targets", [{}, TARGETS], ids=["plain", "targets"])
@pytest.mark.parametrize("base", [1.0, 4.0])
def test_no_cascade_while_replicas_start(base, targets):
    """Five times the load, and four minutes until the first new replica serves: the queue must not order others."""
    cluster = Cluster(ScalingSettings(1, 100, **targets), start=240.0)
    lam = base * cluster.capacity()
    run(cluster, lam, 400)
    peak = max(decision.desired for decision in run(cluster, 5 * lam, 600))
    need = ceil(needed(cluster, 5 * lam))
    assert need <= peak <= 1.2 * need + 1


@examples(max_examples=scaled(3), deadline=None)
@given(st.floats(0.2, 5.0), st.integers(0, 1000))
def test_constant_load_does_not_flap(level, seed):
    """Chance alone changes the number once in a window at most, whatever the load."""
    cluster = Cluster(ScalingSettings(1, 30), seed=seed)
    lam = level * cluster.capacity()
    seen = [decision.desired for decision in run(cluster, lam, 1800)]
    changes = [tick for tick in range(350, len(seen)) if seen[tick] != seen[tick - 1]]
    window = int(cluster.settings.down_stabilization / 2)
    assert all(later - earlier >= window for earlier, later in pairwise(changes))


def test_a_wrong_guess_of_what_a_replica_does_is_found_out():
    """Replicas that lose half their time outside of steps: the queue that stays tells what they really do."""
    cluster = Cluster(ScalingSettings(1, 30), lost=0.5)
    one = cluster.capacity() / 2
    run(cluster, 3 * one, 900)
    assert cluster.state.learned.capacity.rate < 1.4 * one
    waits = [cluster.held + sum(server.q for server in cluster.servers) for _ in run(cluster, 3 * one, 300)]
    assert waits[-1] == 0


def test_more_than_one_target_is_kept_without_waiting():
    cluster = Cluster(ScalingSettings(1, 30, **TARGETS))
    lam = 2.5 * cluster.capacity()
    run(cluster, lam, 600)
    waits = []
    for _ in range(300):
        cluster.tick(lam)
        waits.append(sum(server.q for server in cluster.servers) + cluster.held)
    assert sum(wait > 0 for wait in waits) < 3
    step = 0.012 + max(server.n for server in cluster.servers) * (3e-4 + 1e-7 * 600)
    assert step < TARGETS["tpot"]


def test_a_target_that_cannot_be_kept_is_said():
    cluster = Cluster(ScalingSettings(1, 5, tpot=0.005))
    decisions = run(cluster, 0.5, 120)
    assert decisions[-1].notice[0] == "TargetsInfeasible"
    assert "tpotMilliseconds: found 5" in decisions[-1].notice[1]


@examples(max_examples=scaled(25), deadline=None)
@given(st.integers(0, 200), st.integers(0, 60), st.integers(0, 60), st.integers(0, 40))
def test_monotone_in_what_comes_waits_and_is_held(arrived, held, waiting, running):
    """More of anything at one look, from the same state, never gives fewer replicas."""
    cluster = Cluster(ScalingSettings(1, 40, **TARGETS))
    run(cluster, 2 * cluster.capacity(), 120)

    def ask(arrived, held, waiting, running):
        now = cluster.now + 2
        seen = cluster.observe()
        (gateway,) = seen.gateways
        traffic = changed(gateway.traffic, arrivals=gateway.traffic.arrivals + arrived, held=held)
        traffic = changed(traffic, held_prompt_tokens=held * 500)
        pods = tuple(
            replace(
                pod,
                sampled_at=now,
                load=pod.load
                and changed(
                    pod.load,
                    waiting=waiting,
                    waiting_tokens=500 * waiting,
                    uncached_prompt_tokens=500 * waiting,
                    running=running,
                    blocks_pinned=20 * running,
                ),
            )
            for pod in seen.pods
        )
        asked = replace(seen, pods=pods, gateways=(replace(gateway, traffic=traffic, sampled_at=now),))
        return decide(cluster.settings, cluster.state, asked, now).desired

    base = ask(arrived, held, waiting, running)
    assert ask(arrived + 50, held, waiting, running) >= base
    assert ask(arrived, held + 10, waiting, running) >= base
    assert ask(arrived, held, waiting + 10, running) >= base
    assert ask(arrived, held, waiting, running + 20) >= base
