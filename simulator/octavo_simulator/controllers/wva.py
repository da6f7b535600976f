"""llm-d's Workload Variant Autoscaler, second version: tokens in use and queued against the capacity of replicas.

Source: llm-d/llm-d-workload-variant-autoscaler, internal/engines/analyzers/saturation_v2, and arXiv 2603.09730. The
capacity of a replica is the smaller of k1, 80 % of its pool, and k2, the tokens in use while its queue was long. Until
that was observed, k2 follows from the step budget and rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil, floor
from statistics import fmean, median

from octavo_operator.autoscale.types import Observation
from octavo_protocol.load import LoadReport
from octavo_simulator.controllers.view import ControllerView, view
from octavo_simulator.scenario import Controller, ReplicaTarget

TICK_SECONDS = 30.0
KV_THRESHOLD = 0.80
QUEUE_THRESHOLD = 5
_SEEN = 20


def derived(load: LoadReport, prompt: float, output: float) -> float:
    """k2 before any observed saturation: N = min(B*O/(I+O), rows) requests of I + O/2 tokens."""
    rows = min(load.max_batched_tokens * output / max(1.0, prompt + output), load.max_running)
    return rows * (prompt + output / 2)


def replicas(*, demand: float, each: float, ready: int, pending: int, up: float, down: float) -> int:
    """Replicas for `demand` tokens: more above the share `up` of the supply, fewer below `down` of the ready supply."""
    required = demand / up - (ready + pending) * each
    spare = ready * each - demand / down
    supply = ready + pending
    if required > 0:
        return supply + ceil(required / each)
    if spare > 0 and not pending:
        fewer = max(1, ready - floor(spare / each))
        while fewer < ready and demand > fewer * each * up:
            fewer += 1
        return fewer
    return supply


def wva(up: float = 0.85, down: float = 0.70, tick: float = TICK_SECONDS) -> Controller:
    """The analyzer with its history of saturated replicas, by mean output length."""
    saturated: dict[int, deque[float]] = {}
    counted: dict[str, LoadReport] = {}
    prompt = output = 0.0

    def control(observation: Observation, now: float) -> ReplicaTarget:
        nonlocal prompt, output
        state = view(observation, now)
        if not state.loads:
            return ReplicaTarget(
                max(state.current, int(state.held > 0)), tick, "MetricsMissing" if state.current else ""
            )
        prompt, output = _sizes(state, counted, prompt, output)
        counted.update(state.loads)
        bucket = 0 if output < 100 else 1 if output < 500 else 2
        for load in state.loads.values():
            if load.waiting >= QUEUE_THRESHOLD:
                saturated.setdefault(bucket, deque(maxlen=_SEEN)).append(load.blocks_pinned * load.block_size)
        each = median(_capacity(load, saturated.get(bucket, ()), prompt, output) for load in state.loads.values())
        demand = sum(load.blocks_pinned * load.block_size + load.waiting * prompt for load in state.loads.values())
        demand += state.held_tokens + state.held * output
        wanted = replicas(
            demand=demand, each=max(1.0, each), ready=state.ready, pending=state.pending, up=up, down=down
        )
        return ReplicaTarget(wanted, tick, "")

    return control


def _capacity(load: LoadReport, seen: Sequence[float] | deque[float], prompt: float, output: float) -> float:
    memory = load.blocks_total * load.block_size * KV_THRESHOLD
    compute = fmean(seen) if seen else derived(load, prompt, output)
    return min(memory, compute) if compute > 0 else memory


def _sizes(state: ControllerView, before: dict[str, LoadReport], prompt: float, output: float) -> tuple[float, float]:
    """Smoothed mean lengths of the requests served since the last call; unchanged if there were none."""
    requests = prompts = outputs = 0
    for name, load in state.loads.items():
        known = before.get(name)
        requests += load.requests - (known.requests if known else 0)
        prompts += load.prompt_tokens - (known.prompt_tokens if known else 0)
        outputs += load.generation_tokens - (known.generation_tokens if known else 0)
    if requests <= 0:
        return prompt, output
    fresh = prompts / requests, outputs / requests
    if not prompt:
        return fresh
    return 0.7 * prompt + 0.3 * fresh[0], 0.7 * output + 0.3 * fresh[1]
