"""Octavo without a part of its reasoning: the part is gone, the rest runs, and the operator's code is as before."""

from dataclasses import replace
from functools import cache
from random import Random

import pytest
from tests.unit.simulator.test_controllers import load, seen

from octavo_operator.autoscale import demand as demands
from octavo_operator.autoscale import policy
from octavo_operator.autoscale.arrivals import Arrivals
from octavo_operator.autoscale.capacity import ReplicaCapacity, RequestSizes
from octavo_operator.autoscale.signals import measure
from octavo_operator.autoscale.types import PolicyState, ScalingSettings
from octavo_simulator.cluster import simulate
from octavo_simulator.controllers.ablation import PARTS, without
from octavo_simulator.controllers.octavo import octavo
from octavo_simulator.scenario import Controller, Promise, Scenario
from octavo_simulator.steptime import PodProfile
from octavo_simulator.trace import Trace, TraceRequest

POD = PodProfile("small", base=0.02, prefill=1e-3, row=1e-3, context=1e-7, pool_tokens=8000, noise=0.0, start=30.0)
WANTED = ScalingSettings(min_replicas=1, max_replicas=8, ttft=2.0, tpot=0.1, down_stabilization=60.0)


def asked(controller: Controller) -> list[tuple[float, int]]:
    """A load that rises for three minutes and then comes all at once."""
    random, at, requests = Random(3), 0.0, []
    while (at := at + random.expovariate(0.5 + at / 60 if at < 180 else 20.0)) < 195:
        requests.append(TraceRequest(at, random.randint(100, 900), random.randint(1, 60)))
    world = Scenario("test", Trace("test", tuple(requests), 240.0), POD, Promise(2.0, 0.1), spread=0.0, most=8)
    run = simulate(world, controller)
    assert all(job.outcome for job in run.jobs)
    return [(look.at, look.desired) for look in run.decisions]


@cache
def asked_by_all_of_it() -> list[tuple[float, int]]:
    return asked(octavo(lambda _now: WANTED))


@pytest.mark.parametrize("part", ["rate", "capacity", "surge", "forecast"])
def test_something_else_is_decided_without_it(part: str) -> None:
    module, name, value = PARTS[part]
    before = getattr(module, name)
    assert asked(without(part, lambda _now: WANTED)) != asked_by_all_of_it()
    assert before is getattr(module, name) is not value, "the operator's own function is back"


def test_a_term_that_is_taken_away_is_zero_and_the_others_stay() -> None:
    crowd = seen(
        10.0, load(running=50, waiting=20, waiting_tokens=900, blocks_pinned=90, uncached_prompt_tokens=90_000)
    )
    known = replace(
        PolicyState().learned,
        arrivals=Arrivals((9.0,) * 30, 1, 0.0, 0.9),
        sizes=RequestSizes(prompt=400.0, answer=50.0, hit=0.0, resident=425.0),
        capacity=ReplicaCapacity(rate=0.2, prefill=80.0, rows=8.0, step=0.05, service=2.5, feasible=True),
    )
    given = WANTED, known, measure(WANTED, PolicyState(), crowd, 10.0), 10.0, 0.0
    whole = policy.demand(*given)
    for term in ("rate", "room", "stock", "queue", "ttft"):
        assert getattr(whole, term) > 0, term
    for term in ("stock", "queue", "ttft"):
        assert PARTS[term][2](*given) == replace(whole, **{term: 0.0})
    assert PARTS["rate"][2](*given) == replace(whole, rate=0.0, room=0.0)
    assert demands.demand is policy.demand
