"""The benchmark's arithmetic: what a pod's step times are read off, and how the comparison is judged."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bench.simulator import calibration as cal
from octavo_simulator.job import SimulatedRequest
from octavo_simulator.pod import SimulatedPod
from octavo_simulator.steptime import PodProfile
from octavo_simulator.trace import TraceRequest

BLANK = PodProfile(
    "pod",
    base=0.001,
    prefill=0,
    row=0,
    context=0,
    noise=0,
    pool_tokens=20_000,
    max_running=64,
    budget=512,
    slowdown=1.5,
)
REAL = replace(BLANK, base=0.0025, prefill=0.0015, row=0.0022, context=4e-6, attention=2e-6, floor=0.008)


def window(profile: PodProfile, count: int, prompt: int, output: int) -> cal.Window:
    pod = SimulatedPod(profile, 0.0)
    for number in range(count):
        pod.submit(SimulatedRequest(number, TraceRequest(0.0, prompt, output), 0.0), 0.0)
    pod.advance(1e6)
    sums, pairs = pod.sums.steps(), count * prompt * (prompt - 1) // 2
    wall = sums.seconds + 0.0002 * sums.count
    return cal.Window(sums.count, sums.seconds, sums.prefill, sums.rows, sums.context, pairs, wall)


def test_step_times_are_read_off_the_fitting_loads() -> None:
    several, few = ([window(REAL, *load) for load in loads] for loads in (cal.FITTING, cal.FEW))
    found = cal.fit(several, few, BLANK)
    assert (found.base, found.floor) == pytest.approx((0.0027, 0.0082), rel=0.1), "and 0.2 ms between steps"
    assert (found.prefill, found.row) == pytest.approx((0.0015, 0.0022), rel=0.03)
    assert found.attention == pytest.approx(2e-6, rel=0.1)
    requests = cal.arrivals(2.0, 30.0, random.Random(1))
    model, truth = (cal.figures(cal.simulated(profile, requests)[0], (1.0, 0.05)) for profile in (found, REAL))
    assert (model["inter_token"], model["ttft_p99"]) == pytest.approx(
        (truth["inter_token"], truth["ttft_p99"]), rel=0.1
    )


def test_what_is_judged() -> None:
    answers = [cal.Answer(0.1, 0.9, 10), cal.Answer(0.3, 0.5, 2), cal.Answer(2.0, 0.0, 1), cal.Answer(0.1, 0.1, 3)]
    found = cal.figures(answers, (1.0, 0.1))
    assert found["attained"] == 0.5
    assert found["inter_token"] == pytest.approx(1500 / 12)
    assert found["ttft_p50"] == pytest.approx(200)


def test_capacity_lies_between_the_levels_and_misses_are_named() -> None:
    def level(rate: float, measured: float, simulated: float) -> dict[str, object]:
        both = {"inter_token": 10.0, "ttft_p50": 100.0, "ttft_p99": 200.0}
        ours = both | {"inter_token": 10.5, "attained": simulated}
        return {"rate": rate, "others": 0.0, "measured": both | {"attained": measured}, "simulated": ours}

    levels = [level(1.0, 1.0, 1.0), level(2.0, 0.95, 1.0), level(3.0, 0.85, 0.8)]
    assert cal.capacity(levels, "measured") == pytest.approx(2.5)
    assert cal.capacity(levels, "simulated") == pytest.approx(2.5)
    assert cal.capacity(levels[:1], "measured") == 1.0
    text = cal.table(dict.fromkeys(("floor", "base", "prefill", "row", "context", "attention"), 0.001), levels)
    assert "inter token: at most 5 % off, bar 10 %: met" in text
    assert "no result" not in text
    levels[0]["simulated"]["ttft_p99"] = 300.0
    levels[0]["others"] = 1.5
    assert "used up to 1.5 cores meanwhile: no result" in cal.table(dict.fromkeys(REAL.__slots__, 0.0), levels)
    assert "ttft p99: at most 50 % off, bar 30 %: **missed**" in cal.table(dict.fromkeys(REAL.__slots__, 0.0), levels)
