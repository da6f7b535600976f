"""Random requests and aborts over many steps: an engine that overlaps its steps gives the tokens of one that does not.

Both engines get the same requests and aborts at the same steps, over too few blocks, so that sequences are preempted
and return from the host or are computed again. Which sequences share a step differs between the two, and with it the
last bit of logits in bfloat16: a greedy token may differ where both candidates are almost equal, and a random one in a
few of a hundred tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bench.gpu.check_engine import NEAR_TIE, SAMPLED, create, forced, graphs
from bench.gpu.checked_models import random_weights
from bench.lib.results import Row
from octavo_inference.backends.cuda.device import Device
from octavo_inference.core.backend import Backend
from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.request import Request, SamplingParams
from octavo_inference.models.config import ModelConfig

_CHECKED = 500
"""Steps between two checks of the pool's accounts."""


@dataclass(frozen=True, slots=True)
class Soak:
    """Steps with arrivals and aborts, and the engine's sizes. `arriving` and `aborted`: mean numbers of them a step."""

    steps: int
    rows: int
    prompt: int
    out: int
    blocks: int
    host_blocks: int
    budget: int
    arriving: float = 0.75
    aborted: float = 0.05


REAL = Soak(steps=20_000, rows=32, prompt=24, out=80, blocks=36, host_blocks=4, budget=128, arriving=0.18)
TINY = Soak(steps=6, rows=3, prompt=10, out=40, blocks=5, host_blocks=4, budget=32, arriving=1.0)


@dataclass(slots=True)
class Answer:
    """A request, its tokens so far, and whether it was aborted."""

    request: Request
    tokens: list[int]
    aborted: bool = False


def check(config: ModelConfig, soak: Soak, dtype: torch.dtype, device: Device) -> Row:
    """Soak a backend of random weights."""
    length = soak.prompt + soak.out
    backend = create(
        config, random_weights(config), dtype, device, blocks=soak.blocks, tokens=max(soak.budget, length),
        rows=soak.rows, length=length,
    )  # fmt: skip
    return compare(backend, config, soak, exact=dtype == torch.float32) | graphs(backend)


def compare(backend: Backend, config: ModelConfig, soak: Soak, *, exact: bool) -> Row:
    """Run both engines, and compare every answer up to the first token that differs; `exact`: none may differ."""
    row: Row = {"steps": soak.steps, "tokens": 0, "greedy": 0, "random": 0, "gap": 0.0, "lengths_differ": 0}
    row["gap_bound"] = 0.0 if exact else NEAR_TIE
    whole = run(backend, config, soak, row, overlap=True)
    plain = run(backend, config, soak, {}, overlap=False)
    for one, other in zip(whole, plain, strict=True):
        same = common(one.tokens, other.tokens)
        row["tokens"] += same
        if same == min(len(one.tokens), len(other.tokens)):
            # Aborts come a step earlier or later in an answer; other answers have their full length.
            row["lengths_differ"] += len(one.tokens) != len(other.tokens) and not one.aborted
        elif one.request.sampling.temperature:
            row["random"] += 1
        else:
            row["greedy"] += 1
            row["gap"] = max(row["gap"], gap(backend, one, other, same))
    row["requests"] = len(whole)
    # The share is of tokens: an answer parts at its first one that differs.
    allowed = 0 if exact else SAMPLED * row["tokens"]
    good = row["gap"] <= row["gap_bound"] and row["random"] <= allowed and row["lengths_differ"] == 0
    good = good and row["swaps"] > 0 and row["tokens"] > 0
    return row | {"verdict": "ok" if good else "wrong"}


def run(backend: Backend, config: ModelConfig, soak: Soak, row: Row, *, overlap: bool) -> list[Answer]:
    """All answers of an engine; the same requests and aborts at the same steps for each. Raises PoolError."""
    limits = EngineLimits(
        max_model_len=soak.prompt + soak.out, max_running=soak.rows, max_batched_tokens=soak.budget, max_queued=1 << 20,
        host_blocks=soak.host_blocks, overlap=overlap,
    )  # fmt: skip
    engine = Engine(backend, config, limits, clock=itertools.count().__next__)
    rng = np.random.default_rng(3)
    shared = rng.integers(0, config.vocab, soak.prompt).tolist()
    answers: list[Answer] = []
    step = 0
    while step < soak.steps or engine.has_work:
        if step < soak.steps:
            arrivals, aborts = rng.poisson(soak.arriving), rng.poisson(soak.aborted)
            drawn = rng.integers(0, 1 << 31, (arrivals, 6)).tolist()
            for numbers in drawn:
                answers.append(Answer(request(len(answers), numbers, shared, config, soak), []))
                engine.submit(answers[-1].request)
            for back in rng.integers(1, 2 * soak.rows, aborts).tolist():
                if back <= len(answers):
                    answers[-back].aborted = True
                    engine.abort(answers[-back].request.id)
        for output in engine.step():
            if output.error is not None:
                raise RuntimeError(output.error)
            answers[int(output.id)].tokens += output.tokens
        step += 1
        if step % _CHECKED == 0:
            engine.check()
    engine.check()
    row |= {"preemptions": engine.scheduler.preemptions, "swaps": engine.scheduler.swaps, "all_steps": step}
    row["overlap"] = engine.overlaps
    return answers


def request(number: int, drawn: Sequence[int], shared: list[int], config: ModelConfig, soak: Soak) -> Request:
    """A request of random length, half of them with a common start, a third of them sampled."""
    length, kept = 1 + drawn[0] % soak.prompt, drawn[1] % (soak.prompt // 2) if drawn[2] % 2 else 0
    own = np.random.default_rng(drawn[3]).integers(0, config.vocab, length).tolist()
    sampling = SamplingParams(
        temperature=0.8 if drawn[4] % 3 == 0 else 0.0, top_k=40, max_tokens=soak.out - drawn[5] % (soak.out // 2),
        ignore_eos=True, seed=number,
    )  # fmt: skip
    return Request(id=str(number), tokens=shared[: min(kept, length)] + own[min(kept, length) :], sampling=sampling)


def gap(backend: Any, one: Answer, other: Answer, same: int) -> float:
    """Difference of the logits of the first tokens that differ."""
    prompt, tokens = list(one.request.tokens), one.tokens[: same + 1]
    logits = backend.logits(forced(prompt, tokens, backend.layout, len(prompt) + len(tokens)))[-1]
    return float(abs(logits[one.tokens[same]] - logits[other.tokens[same]]))


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix of two answers."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
