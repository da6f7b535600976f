"""The arithmetic of `python -m bench.simulator`: loads, the fit of step times, the comparison. No I/O."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

import numpy as np

from octavo_simulator.job import SimulatedRequest
from octavo_simulator.pod import SimulatedPod
from octavo_simulator.steptime import PodProfile
from octavo_simulator.trace import TraceRequest

# Mean and deviation of log tokens in the public Azure conversation trace (2023); a CPU gets an eighth of the tokens.
SMALLER = 8
PROMPT = (6.63 - math.log(SMALLER), 0.985, 4, 520)
OUTPUT = (5.02 - math.log(SMALLER), 0.859, 2, 150)

# Concurrent requests, prompt tokens, output tokens: the loads of the step time fit. None of them resembles the levels.
FITTING = (
    (4, 60, 1), (1, 130, 1), (1, 250, 1), (1, 500, 1), (3, 500, 1),
    (6, 64, 40), (8, 32, 40), (12, 64, 32), (16, 32, 32), (24, 32, 24), (32, 32, 24), (8, 300, 32),
)  # fmt: skip
# So few rows that reading the weights determines the step time.
FEW = ((1, 16, 64), (1, 100, 48), (2, 16, 40))
# Shares of the fitted pod's maximum rate.
LEVELS = (0.3, 0.5, 0.7, 0.85, 1.0)
# Limits for a served request: multiples of its latency alone on the pod (for a request of mean size).
FIRST_TIMES, TOKEN_TIMES = 10.0, 4.0
ATTAINED = 0.9
# Seconds; every load ends long before.
_END = 1e7
# Cores that other processes may use before a run is invalid.
QUIET = 0.2
# The acceptance criteria, fixed in advance.
GATE = {"capacity": 0.10, "inter_token": 0.10, "ttft_p99": 0.30}


@dataclass(frozen=True, slots=True)
class Window:
    """A pod's work between two idle moments: sums over its steps; `pairs` counts (prompt token, earlier token).

    `seconds` is the time in steps, `wall` the elapsed time.
    """

    steps: int
    seconds: float
    prefill: int
    rows: int
    context: int
    pairs: int
    wall: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Latency of one request: seconds to the first token, and from there to the last; `tokens` of output."""

    first: float
    rest: float
    tokens: int


def fit(windows: Sequence[Window], few: Sequence[Window], profile: PodProfile) -> PodProfile:
    """Fit a profile to these windows, which all have equal weight: non-negative relative least squares.

    Then fit its floor: the median step time of the `few`, without the one prompt step of each window.
    """
    seconds = np.array([w.seconds for w in windows])
    rows = np.array([[w.steps, w.prefill, w.rows, w.context, w.pairs] for w in windows], dtype=float)
    matrix = rows / seconds[:, None]
    best, error = np.zeros(5), math.inf
    # Times cannot be negative: of all subsets of terms, choose the best fit without negative coefficients.
    for terms in itertools.chain.from_iterable(itertools.combinations(range(5), n) for n in range(1, 6)):
        found, *_ = np.linalg.lstsq(matrix[:, terms], np.ones(len(seconds)), rcond=None)
        off = float(np.sum((matrix[:, terms] @ found - 1) ** 2))
        if (found >= 0).all() and off < error:
            best, error = np.zeros(5), off
            best[list(terms)] = found
    base, prefill, row, context, attention = map(float, best)
    floors = [
        (w.seconds - base - prefill * w.prefill - context * w.context - attention * w.pairs) / (w.steps - 1)
        for w in few
    ]
    # Between two steps the engine processes messages and sends outputs, which also takes time.
    long = [w for w in (*windows, *few) if w.steps > 8]
    between = sum(w.wall - w.seconds for w in long) / sum(w.steps for w in long)
    return replace(
        profile, base=base + between, prefill=prefill, row=row, context=context, attention=attention,
        floor=median(floors) + between,
    )  # fmt: skip


def sizes(rng: random.Random) -> tuple[int, int]:
    """Prompt and output tokens of a request."""

    def draw(mean: float, deviation: float, least: int, most: int) -> int:
        return min(most, max(least, round(rng.lognormvariate(mean, deviation))))

    return draw(*PROMPT), draw(*OUTPUT)


def arrivals(rate: float, seconds: float, rng: random.Random) -> list[TraceRequest]:
    """A Poisson stream of independent requests."""
    requests, at = [], 0.0
    while (at := at + rng.expovariate(rate)) < seconds:
        prompt, output = sizes(rng)
        requests.append(TraceRequest(at, prompt, output))
    return requests


def simulated(profile: PodProfile, requests: Sequence[TraceRequest]) -> tuple[list[Answer], float]:
    """Run the same requests on the simulator's pod; answers, and seconds in steps."""
    pod = SimulatedPod(profile, 0.0)
    jobs = [SimulatedRequest(number, request, request.at) for number, request in enumerate(requests)]
    for job in jobs:
        pod.advance(job.arrived)
        pod.submit(job, job.arrived)
    pod.advance(_END)
    answers = [Answer(job.first - job.arrived, job.ended - job.first, job.request.output) for job in jobs]
    return answers, pod.sums.busy


def highest_rate(profile: PodProfile) -> float:
    """Maximum rate of the simulated pod in requests per second, under constant backlog."""
    rng = random.Random(0)
    requests = [TraceRequest(0.0, *sizes(rng)) for _ in range(600)]
    end = max(answer.first + answer.rest for answer in simulated(profile, requests)[0])
    return len(requests) / end


def alone(profile: PodProfile) -> tuple[float, float]:
    """Seconds to the first token and per token for a request of mean size alone on the pod."""
    rng = random.Random(0)
    drawn = [sizes(rng) for _ in range(2000)]
    prompt, output = (sum(values) / len(drawn) for values in zip(*drawn, strict=True))
    return profile.linear(0, round(prompt)), profile.linear(1) + profile.context * (prompt + output / 2)


def figures(answers: Sequence[Answer], objectives: tuple[float, float]) -> dict[str, float]:
    """Figures of a level. Times are milliseconds; `attained`: share of requests within both objectives."""
    first = [answer.first for answer in answers]
    cuts = quantiles(first, n=100, method="inclusive")
    later = [answer for answer in answers if answer.tokens > 1]
    good = sum(a.first <= objectives[0] and a.rest <= objectives[1] * max(1, a.tokens - 1) for a in answers)
    return {
        "ttft_p50": 1e3 * cuts[49],
        "ttft_p99": 1e3 * cuts[98],
        "inter_token": 1e3 * sum(a.rest for a in later) / sum(a.tokens - 1 for a in later),
        "attained": good / len(answers),
    }


def capacity(levels: Sequence[dict[str, Any]], who: str) -> float:
    """The rate up to which enough requests meet the objectives: linear interpolation between two levels."""
    known = 0.0
    before = 1.0
    for level in levels:
        rate: float = level["rate"]
        share: float = level[who]["attained"]
        if share < ATTAINED:
            return known + (rate - known) * (before - ATTAINED) / (before - share)
        known, before = rate, share
    return known


def errors(levels: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Simulated over measured, minus one: for each figure of the gate, by level; capacity is one number."""
    found = {
        key: [level["simulated"][key] / level["measured"][key] - 1 for level in levels]
        for key in ("inter_token", "ttft_p99")
    }
    return {"capacity": [capacity(levels, "simulated") / capacity(levels, "measured") - 1], **found}


def table(profile: Mapping[str, Any], levels: Sequence[dict[str, Any]]) -> str:
    """Format the result as Markdown."""
    names = {"inter_token": "inter-token", "ttft_p50": "TTFT p50", "ttft_p99": "TTFT p99"}
    heads = [f"{name}, ms: measured | simulated | off" for name in names.values()]
    lines = [
        f"| requests/s | {' | '.join(heads)} | within SLO: measured | simulated | cores used by others |",
        "|" + "---|" * (4 + 3 * len(names)),
    ]
    for level in levels:
        cells = [f"{level['rate']:.2f}"]
        for key in names:
            real, model = level["measured"][key], level["simulated"][key]
            cells += [f"{real:,.1f}", f"{model:,.1f}", f"{100 * (model / real - 1):+.0f} %"]
        cells += [f"{100 * level[who]['attained']:.0f} %" for who in ("measured", "simulated")]
        lines.append(f"| {' | '.join(cells)} | {level['others']:.2f} |")
    off = errors(levels)
    rates = [f"{who} {capacity(levels, who):.2f}" for who in ("measured", "simulated")]
    times = [
        f"{name} {1e3 * profile[name]:.3g}" for name in ("floor", "base", "prefill", "row", "context", "attention")
    ]
    lines += ["", f"Fitted, ms: {', '.join(times)}.", ""]
    lines += [f"Requests/s with {100 * ATTAINED:.0f} % within SLO: {', '.join(rates)}.", ""]
    busiest = max(level["others"] for level in levels)
    if busiest > QUIET:
        lines += [
            f"**Other programs used up to {busiest:.1f} cores meanwhile: no result; repeat it on a quiet machine.**",
            "",
        ]
    for key, bound in GATE.items():
        worst = 100 * abs(max(off[key], key=abs))
        verdict = "met" if worst <= 100 * bound else "**missed**"
        lines.append(f"- {key.replace('_', ' ')}: at most {worst:.0f} % off, bar {100 * bound:.0f} %: {verdict}")
    return "\n".join(lines) + "\n"
