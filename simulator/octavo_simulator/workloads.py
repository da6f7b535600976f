"""The workloads for the comparison of scalers, each with its pod profile and latency objectives. Random by seed.

Lengths and rates follow published traces where available. Recorded traces are never scaled in time, because that would
change bursts relative to the start time of a replica. More load is a shifted copy of the same trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from math import cos, exp, log, pi
from pathlib import Path
from random import Random
from typing import Final

from octavo_simulator import trace as traces
from octavo_simulator.scenario import Faults, Promise, Scenario
from octavo_simulator.steptime import PROFILES, PodProfile
from octavo_simulator.trace import Trace, TraceRequest

AZURE_CONV: Final = "azure/AzureLLMInferenceTrace_conv_2023.csv"
AZURE_CODE: Final = "azure/AzureLLMInferenceTrace_code_2023.csv"

_SMALL = PROFILES["8b-24gb"]
_LARGE = PROFILES["llama2-70b-4xh100"]
# Until then no scaler's window is full, so none may scale below the initial replicas.
_GRACE = 300.0
# Chosen once, so that with enough pods more than 99.5 % of the requests meet them. A prompt of 7,400 tokens takes two
# seconds on the small pod. The steps of one prompt are most of the time of an output of 13 tokens.
_CHAT = Promise(ttft=5.0, tpot=0.15)
_DEEP = Promise(ttft=10.0, tpot=0.15)
_CODE = Promise(ttft=8.0, tpot=0.4)
_LONG = Promise(ttft=10.0, tpot=0.12)

Make = Callable[[int, Path | None], Scenario]
"""A scenario from a seed and the folder of public traces."""


class NoTracesError(Exception):
    """A workload needs public traces that are missing; the message explains how to get them."""


def azure_conv(_: int, folder: Path | None) -> Scenario:
    """Chats: smooth arrivals (coefficient of variation of the gaps 1.1), 1,155 tokens in and 211 out."""
    return _judged("azure-conv", _azure(folder, AZURE_CONV), _CHAT, initial=6)


def azure_code(_: int, folder: Path | None) -> Scenario:
    """Code completion: prompts of 2,048 tokens, outputs of 28, in bursts. Two copies, half an hour apart."""
    trace = _azure(folder, AZURE_CODE)
    copies = (_shifted(trace, trace.seconds * i / 2) for i in range(2))
    return _judged("azure-code", traces.merge("azure-code", copies), _CODE, initial=8)


def prefixes(seed: int, _: Path | None) -> Scenario:
    """Long prompts with shared documents: 12,000 tokens in, 340 out, 37 % of the prompt's blocks seen before."""
    random = Random(f"prefixes/{seed}")
    documents, seconds = 60, 3600.0
    sizes = [int(_log_normal(random, 4800, 0.3)) for _ in range(documents)]
    popular = [1 / (rank + 1) ** 0.8 for rank in range(documents)]
    requests = []
    for at in _arrivals(random, seconds, 2.2, 1.5, lambda t: 1.0 - 0.5 * cos(2 * pi * t / 1800)):
        document = random.choices(range(documents), popular)[0]
        rest = int(_log_normal(random, 7200, 0.5))
        prompt, output = sizes[document] + rest, max(1, int(random.expovariate(1 / 340)))
        requests.append(TraceRequest(at, prompt, min(output, 4000), document, sizes[document]))
    return _judged("prefixes", Trace("prefixes", tuple(requests), seconds), _LONG, profile=_LARGE, initial=6)


def reasoning(seed: int, _: Path | None) -> Scenario:
    """Outputs of 1,500 tokens: decode-bound, short of KV cache. A day's 10:1 peak-to-trough ratio within two hours.

    Each of 400 clients has its own gaps and is active for a part of the day: the trough has fewer clients, not slower
    ones. A whole day would only add flat parts; the ramps here are twelve times as steep as a day's.
    """
    random = Random(f"reasoning/{seed}")
    seconds, requests = 2 * 3600.0, []
    for _client in range(400):
        # Active while the day's curve is above this client's threshold, so that the number of active ones follows it.
        threshold, rate = random.random(), 0.0045 * _log_normal(random, 1.0, 0.8)
        at = random.expovariate(rate)
        while at < seconds:
            day = 0.55 - 0.45 * cos(2 * pi * at / seconds)
            if day > threshold:
                prompt, output = _log_normal(random, 1300, 0.7), random.expovariate(1 / 1500)
                requests.append(TraceRequest(at, int(min(max(prompt, 16), 8000)), int(min(max(output, 16), 8000))))
            at += random.expovariate(rate)
    return _judged("reasoning", _sorted("reasoning", requests, seconds), _DEEP, initial=2)


def clients(seed: int, _: Path | None) -> Scenario:
    """Many clients, few of them large: gamma gaps of shape 0.2 to 1, individual sizes, large ones with pauses."""
    random = Random(f"clients/{seed}")
    seconds, requests = 3600.0, []
    for rank in range(60):
        rate = 2.4 / (rank + 1) ** 1.1
        shape = random.uniform(0.2, 1.0)
        prompt, output = _log_normal(random, 900, 0.6), _log_normal(random, 180, 0.6)
        # A large client is active for 5 to 15 minutes and pauses as long; the many small ones are always active.
        for begin, end in _shifts(random, seconds) if rank < 6 else [(0.0, seconds)]:
            at = begin
            while (at := at + random.gammavariate(shape, 1 / (shape * rate))) < end:
                size, answer = _pareto(random, prompt), random.expovariate(1 / output)
                requests.append(TraceRequest(at, int(min(max(size, 8), 12_000)), int(min(max(answer, 1), 4000))))
    return _judged("clients", _sorted("clients", requests, seconds), _CHAT, initial=5)


def switch(_: int, folder: Path | None) -> Scenario:
    """Chats and code completion in turn, ten minutes each: the request sizes change, the arrival rate does not.

    All arrivals are those of the chat trace; in every second ten minutes the sizes are those of the code trace, in
    their order. The code trace's bursts are omitted: `azure-code` covers them.
    """
    chat = _azure(folder, AZURE_CONV)
    code = cycle(_azure(folder, AZURE_CODE).requests)
    requests = [
        replace(next(code), at=request.at) if int(request.at // 600) % 2 else request for request in chat.requests
    ]
    return _judged("switch", _sorted("switch", requests, chat.seconds), _CODE, initial=6)


def on_off(seed: int, _: Path | None) -> Scenario:
    """Five minutes of chats every half hour: scale to zero is allowed, and requests may wait for a start."""
    random = Random(f"on-off/{seed}")
    seconds, requests = 3 * 3600.0, []
    for begin in range(0, int(seconds), 1800):
        at = begin + 300.0 + random.uniform(0, 300)
        end = at + 300
        while (at := at + random.expovariate(2.0)) < end:
            requests.append(TraceRequest(at, int(_log_normal(random, 900, 0.7)), int(1 + random.expovariate(1 / 200))))
    scenario = _judged("on-off", _sorted("on-off", requests, seconds), Promise(ttft=120.0, tpot=0.15), initial=0)
    return replace(scenario, least=0, patience=300.0, tuning=3600.0)


JUDGED: Final[dict[str, Make]] = {
    "azure-conv": azure_conv,
    "azure-code": azure_code,
    "prefixes": prefixes,
    "reasoning": reasoning,
    "clients": clients,
    "switch": switch,
}
"""The six workloads of the comparison."""
WORKLOADS: Final[dict[str, Make]] = {**JUDGED, "on-off": on_off}
RECORDED: Final = frozenset({"azure-conv", "azure-code", "switch"})
"""Workloads from recorded traces: a seed changes only starts, noise and ties, never the requests."""


def _longer_answers(scenario: Scenario, factor: float) -> Scenario:
    """Scale output lengths after the tuning part, so that the learned lengths are wrong by `factor`."""
    requests = tuple(
        replace(r, output=max(1, int(r.output * factor))) if r.at >= scenario.tuning else r
        for r in scenario.trace.requests
    )
    return replace(scenario, trace=replace(scenario.trace, requests=requests))


FAULTS: Final[dict[str, tuple[str, Callable[[Scenario], Scenario]]]] = {
    "10 % of samples lost": ("clients", lambda s: replace(s, faults=Faults(loss=0.1))),
    "no samples for 120 s": ("clients", lambda s: replace(s, faults=Faults(outage=(1800.0, 1920.0)))),
    "20 % of starts fail": ("clients", lambda s: replace(s, faults=Faults(failed_starts=0.2))),
    "starts take twice as long": ("clients", lambda s: replace(s, faults=Faults(slow_starts=1200.0))),
    "answers twice as long": ("clients", lambda s: _longer_answers(s, 2.0)),
    "answers half as long": ("clients", lambda s: _longer_answers(s, 0.5)),
    "a node dies": ("clients", lambda s: replace(s, faults=Faults(kills=(1800.0, 2700.0)))),
    "caches lost": ("prefixes", lambda s: replace(s, faults=Faults(forget=1800.0))),
}
"""Faults, each with its workload."""


def _judged(name: str, trace: Trace, promise: Promise, *, initial: int, profile: PodProfile = _SMALL) -> Scenario:
    # One gateway: the comparison is about scalers, which all have the same router.
    named = replace(trace, name=name)
    return Scenario(name, named, profile, promise, initial=initial, most=32, grace=_GRACE, gateways=1)


def _azure(folder: Path | None, name: str) -> Trace:
    if folder is None or not (folder / name).is_file():
        raise NoTracesError(
            f"{name} not found: download the Azure LLM inference traces of 2023 (github.com/Azure/AzurePublicDataset) "
            "and set --traces or OCTAVO_TRACES to their folder"
        )
    return traces.load(folder / name)


def _shifted(trace: Trace, seconds: float) -> Trace:
    """The same requests, shifted by `seconds`; those beyond the end wrap around to the start."""
    requests = [replace(r, at=(r.at + seconds) % trace.seconds) for r in trace.requests]
    return _sorted(trace.name, requests, trace.seconds)


def _sorted(name: str, requests: Sequence[TraceRequest], seconds: float) -> Trace:
    return Trace(name, tuple(sorted(requests, key=lambda r: r.at)), seconds)


def _arrivals(random: Random, seconds: float, rate: float, most: float, shape: Callable[[float], float]) -> list[float]:
    """A Poisson process of `rate` times `shape`, which is at most `most`, by thinning."""
    found, at = [], 0.0
    while (at := at + random.expovariate(rate * most)) < seconds:
        if random.random() * most < shape(at):
            found.append(at)
    return found


def _shifts(random: Random, seconds: float) -> list[tuple[float, float]]:
    found, at = [], -random.uniform(0, 900)
    while at < seconds:
        end = at + random.uniform(300, 900)
        if end > 0:
            found.append((max(0.0, at), min(end, seconds)))
        at = end + random.uniform(300, 900)
    return found


def _log_normal(random: Random, mean: float, sigma: float) -> float:
    return exp(random.gauss(log(mean) - sigma * sigma / 2, sigma))


def _pareto(random: Random, mean: float) -> float:
    """Log-normal body; one in ten from a Pareto tail with exponent 2.5 and twice the mean."""
    return random.paretovariate(2.5) * mean * 1.2 if random.random() < 0.1 else _log_normal(random, mean * 0.89, 0.6)
