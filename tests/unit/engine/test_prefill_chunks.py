"""Limited prompts on simulated devices: how much later a first token and the next ones come than without a limit."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from bench.cpu.prefill_chunks import DEVICES, INTER_TOKEN, MARGIN, Played, Prompt, first_token, measure, play, table
from octavo_inference.config.engine import GPU_PROFILES, PROFILES
from octavo_inference.core.prefill_budget import pairs
from octavo_simulator.steptime import PodProfile

# The profiles latency, balanced and throughput of both kinds of device.
LIMITS = sorted(
    {(p.max_batched_tokens, p.prefill_slowdown) for profiles in (PROFILES, GPU_PROFILES) for p in profiles.values()}
)


@st.composite
def devices(draw: st.DrawFn) -> PodProfile:
    """Steps of 1 to 50 ms, prompt tokens that cost as much after 1 to 2,000, and up to six times that for a mixed step.

    The fixed cost is an intercept, a flat part or absent. Attention doubles a token's cost after 500 tokens, 4,000 or
    never.
    """
    quiet = draw(st.floats(1e-3, 5e-2))
    prefill = quiet / draw(st.floats(1, 2000))
    fixed = quiet * draw(st.floats(1, 6))
    kind = draw(st.sampled_from(["none", "intercept", "flat"]))
    budget, slowdown = draw(st.sampled_from(LIMITS))
    return PodProfile(
        kind,
        base=quiet,
        prefill=prefill,
        attention=prefill / draw(st.sampled_from([500, 4000, math.inf])),
        row=quiet * draw(st.sampled_from([0.0, 0.002, 0.02])),
        context=0.0,
        pool_tokens=1 << 20,
        mixed_base=fixed if kind == "intercept" else 0.0,
        mixed_floor=fixed if kind == "flat" else 0.0,
        noise=draw(st.sampled_from([0.0, 0.05, 0.15])),
        budget=budget,
        slowdown=slowdown,
    )


def load(device: PodProfile, tokens: int, output: int, answers: int, share: float, seed: int) -> list[Prompt]:
    """100 Poisson arrivals with log-normal prompts and exponential outputs.

    Prompts take `share` of the device's time, or outputs about `answers` rows, whichever is less.
    """
    rng = random.Random(seed)
    mean, squares = tokens * math.exp(0.5), min(tokens**2 * math.exp(2), 8000**2)
    rate = min(
        share / (device.prefill * mean + device.attention * squares / 2 + device.linear(0, 1)),
        answers / (output * (device.base + device.row * answers)),
    )
    at, prompts = 0.0, []
    for _ in range(100):
        at += rng.expovariate(rate)
        length = int(rng.lognormvariate(math.log(tokens), 1.0))
        prompts.append(Prompt(at, min(max(length, 1), 8000), 1 + int(rng.expovariate(1 / output))))
    return prompts


@given(
    devices(),
    st.sampled_from([100, 500, 2000]),
    st.sampled_from([20, 100, 300]),
    st.sampled_from([4, 16, 64]),
    st.floats(0.1, 0.33),
    st.integers(0, 1 << 16),
)
@settings(max_examples=scaled(40), deadline=None)
def test_first_and_next_tokens_come_little_later_than_without_a_limit(
    device: PodProfile, tokens: int, output: int, answers: int, share: float, seed: int
) -> None:
    limited = play(device, load(device, tokens, output, answers, share, seed), seed)
    free = play(replace(device, slowdown=0.0), load(device, tokens, output, answers, share, seed), seed)
    assert limited.first_token <= MARGIN * first_token(device.slowdown) * free.first_token
    assert limited.inter_token <= MARGIN * INTER_TOKEN * free.inter_token


def entering(device: PodProfile) -> Played:
    """64 endless answers run alone, then five prompts of 4,000 tokens come one after the other."""
    begin = 64 * device.linear(64, 100)
    apart = 1.5 * first_token(device.slowdown) * device.mixed(64, 4000, pairs(4000, 0))
    answers = [Prompt(0.0, 100, math.inf) for _ in range(64)]
    return play(device, answers + [Prompt(begin + apart * number, 4000) for number in range(1, 6)])


@given(devices())
@settings(max_examples=scaled(20), deadline=None)
def test_steps_take_the_allowed_multiple_or_twice_the_fixed_cost(device: PodProfile) -> None:
    """For one prompt next to 64 answers, once costs are known, and up to noise. A chunk has at least one token."""
    steps = [step for step in entering(device).steps if step.decodes == 64 and step.chunk]
    late = sorted(step.seconds for step in steps[len(steps) // 2 :])
    quiet = device.linear(64)
    fixed = device.linear(64, 1) - quiet
    allowed = max(device.mixed(64, 1, 4000), device.slowdown * quiet, quiet + 2 * fixed)
    assert late[len(late) // 2] <= 1.3 * allowed


@pytest.mark.parametrize("device", DEVICES, ids=[device.name for device in DEVICES])
def test_chunks_do_not_shrink(device: PodProfile) -> None:
    found = measure(device)
    assert found["limited_20"][1] <= first_token(device.slowdown) * found["free_20"][1]
    assert found["limited_20"][1] <= 1.1 * found["limited_1"][1]
    assert len(table([found]).splitlines()) == 3
