"""The simulated pod beside the real scheduler, pool and pace, on a device that takes exactly the time of a profile."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import mean, quantiles

import numpy as np
import pytest
from tests.unit.engine.echo import CONFIG, EchoBackend

from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.request import Request as EngineRequest
from octavo_inference.core.request import SamplingParams
from octavo_simulator.job import SimulatedRequest
from octavo_simulator.pod import SimulatedPod
from octavo_simulator.steptime import PodProfile
from octavo_simulator.trace import TraceRequest

# About an 8B model's proportions, small enough that a test's requests fill it.
PROFILE = PodProfile(
    "device",
    floor=0.012,
    base=0.008,
    prefill=0.0004,
    row=0.0008,
    context=5e-7,
    attention=4e-7,
    pool_tokens=20_000,
    noise=0.0,
    block_size=16,
    max_running=32,
    budget=256,
    slowdown=1.5,
)


class TimedBackend(EchoBackend):
    """Computes as an echo does, in no time but the profile's."""

    def __init__(self, profile: PodProfile) -> None:
        super().__init__(profile.blocks, profile.block_size)
        self.profile = profile
        self.now = 0.0

    def step(self, batch):
        p = self.profile
        linear = p.base
        for query, seen in zip(np.diff(batch.query_start).tolist(), batch.seq_len.tolist(), strict=True):
            if query == 1:
                linear += p.row
                self.now += p.context * seen
            else:
                before = seen - query
                linear += p.prefill * query
                self.now += p.attention * (query * before + query * (query - 1) // 2)
        self.now += max(p.floor, linear)
        return super().step(batch)


def engine_times(profile, requests):
    """Seconds to the first and to the last token of each request, and preemptions."""
    backend = TimedBackend(profile)
    limits = EngineLimits(
        4096, profile.max_running, profile.budget, profile.max_waiting, prefill_slowdown=profile.slowdown or None
    )
    engine = Engine(backend, replace(CONFIG, max_positions=4096), limits, clock=lambda: backend.now)
    times = [[0.0, 0.0] for _ in requests]
    made = [0] * len(requests)
    coming = list(enumerate(requests))[::-1]
    rng = random.Random(0)
    while coming or engine.has_work:
        if not engine.has_work:
            backend.now = max(backend.now, coming[-1][1].at)
        while coming and coming[-1][1].at <= backend.now:
            number, request = coming.pop()
            sampling = SamplingParams(temperature=0.0, max_tokens=request.output, ignore_eos=True)
            tokens = [rng.randrange(50) for _ in range(request.prompt)]
            engine.submit(EngineRequest(id=str(number), tokens=tokens, sampling=sampling))
        for output in engine.step():
            number = int(output.id)
            since = backend.now - requests[number].at
            if not made[number]:
                times[number][0] = since
            made[number] += len(output.tokens)
            times[number][1] = since
    assert made == [request.output for request in requests]
    return times, engine.scheduler.preemptions


def pod_times(profile, requests):
    pod = SimulatedPod(profile, 0.0)
    jobs = [SimulatedRequest(number, request, request.at) for number, request in enumerate(requests)]
    for job in jobs:
        pod.advance(job.arrived)
        assert pod.submit(job, job.arrived)
    pod.advance(1e6)
    return [[job.first - job.arrived, job.ended - job.arrived] for job in jobs], pod.preemptions


def poisson(rate, count, seed, prompts=4.6, outputs=3.0):
    """Arrivals of lognormal sizes, given by the means of their logarithms."""
    rng = random.Random(seed)
    at, requests = 0.0, []
    for _ in range(count):
        at += rng.expovariate(rate)
        prompt, output = rng.lognormvariate(prompts, 1.0), rng.lognormvariate(outputs, 0.9)
        requests.append(TraceRequest(at, min(1500, max(2, int(prompt))), min(200, max(2, int(output)))))
    return requests


@pytest.mark.parametrize(
    ("profile", "rate"),
    [
        pytest.param(PROFILE, 5, id="busy"),
        pytest.param(PROFILE, 12, id="overrun"),
        pytest.param(replace(PROFILE, slowdown=0.0), 12, id="without-pace"),
    ],
)
def test_the_pod_keeps_the_engines_times(profile, rate):
    requests = poisson(rate, 120, seed=1)
    (real, _), (model, _) = engine_times(profile, requests), pod_times(profile, requests)
    assert_alike(real, model, 0.03)


def test_a_pod_that_must_preempt_keeps_them_nearly():
    profile, requests = replace(PROFILE, pool_tokens=2000), poisson(8, 150, seed=1, prompts=3.5, outputs=4.4)
    (real, preempted), (model, as_often) = engine_times(profile, requests), pod_times(profile, requests)
    # Who yields hangs on the last block, and the engine finds some of the lost work in its cache: alike, not equal.
    assert_alike(real, model, 0.3)
    assert as_often == pytest.approx(preempted, rel=0.5)
    assert preempted > 10


def assert_alike(real, model, tolerance):
    assert mean(first for first, _ in model) == pytest.approx(mean(first for first, _ in real), rel=tolerance)
    assert late(model) == pytest.approx(late(real), rel=tolerance)
    decoding = [sum(end - first for first, end in times) for times in (model, real)]
    assert decoding[0] == pytest.approx(decoding[1], rel=tolerance)


def late(times):
    return quantiles([first for first, _ in times], n=100)[98]
