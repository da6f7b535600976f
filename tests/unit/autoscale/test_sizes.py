"""Mean sizes of requests, from counters of pods whose answers take longer than the time between two looks."""

from __future__ import annotations

import random

import pytest
from tests.unit.autoscale.test_policy import load

from octavo_operator.autoscale.policy import decide
from octavo_operator.autoscale.types import Observation, PodSample, PolicyState, ScalingSettings


def play(pods, rate, answer, seconds=3000, speed=25.0):
    """What is learned in `seconds` of `rate` requests/s per pod, each of `answer` tokens at `speed` a second."""
    rng = random.Random(5)
    begun = [[] for _ in range(pods)]
    ended = [0] * pods
    state = PolicyState()
    for tick in range(seconds // 2):
        now = 1000.0 + 2 * tick
        samples = []
        for number, starts in enumerate(begun):
            if rng.random() < 2 * rate:
                starts.append(now)
            made = [speed * (now - start) for start in starts]
            starts[:] = [start for start, tokens in zip(starts, made, strict=True) if tokens < answer]
            ended[number] += len(made) - len(starts)
            tokens = answer * ended[number] + sum(tokens for tokens in made if tokens < answer)
            requests = ended[number] + len(starts)
            report = load(running=len(starts), requests=requests, blocks=10**5)
            counts = {"prompt_tokens": 100 * requests, "generation_tokens": int(tokens)}
            samples.append(PodSample(f"p{number}", "ready", 0.0, type(report)(**{**fields(report), **counts}), now))
        state = decide(ScalingSettings(1, 50), state, Observation(pods, tuple(samples)), now).state
    return state.learned


def fields(report):
    return {name: getattr(report, name) for name in report.__struct_fields__}


@pytest.mark.parametrize(("pods", "rate", "answer"), [(1, 0.02, 1000), (10, 0.05, 1500), (4, 0.03, 2000), (3, 0.5, 50)])
def test_long_answers_count_in_full(pods, rate, answer):
    totals = play(pods, rate, answer).totals
    assert totals.generated / totals.finished == pytest.approx(answer, rel=0.25)
    assert totals.prompt / totals.requests == pytest.approx(100, rel=0.05)


def test_one_busy_pod_among_idle_ones_is_counted():
    rng, state, requests = random.Random(1), PolicyState(), 0
    for tick in range(300):
        now = 1000.0 + 2 * tick
        requests += rng.random() < 0.8
        reports = [load(requests=requests, running=1), load(), load()]
        samples = tuple(PodSample(f"p{n}", "ready", 0.0, report, now) for n, report in enumerate(reports))
        state = decide(ScalingSettings(1, 9), state, Observation(3, samples), now).state
    assert sum(state.learned.arrivals.buckets) == pytest.approx(requests, rel=0.2)
