"""Kernels and engine together: blocks that windows have passed are given to others while a sequence still runs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from octavo_inference.backends.cpu.backend import CpuBackend
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.core.backend import Backend
from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.request import Request, SamplingParams
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layer_groups import pool_layout
from octavo_inference.models.weights import Weights

from .test_forward import TINY, random_weights

BLOCK, LONGEST, ANSWER = 16, 128, 10
PATTERNS: dict[str, tuple[int | None, ...]] = {"mixed": (None, 20, 40, 20), "windows alone": (40, 24)}
PROMPTS = (5, 90, 60, 91, 33)
Tokens = dict[tuple[str, int], list[int]]


@cache
def model(pattern: str) -> tuple[ModelConfig, Weights]:
    windows = PATTERNS[pattern]
    config = replace(TINY, layers=len(windows), windows=windows)
    return config, random_weights(config, np.random.default_rng(4))


def serve(backend: Backend, config: ModelConfig, **limits: Any) -> tuple[Tokens, Engine]:
    """Prompts several windows long, three of which begin alike, one with two answers."""
    given = {"max_running": 8, "max_batched_tokens": 48, "max_queued": 99} | limits
    engine = Engine(backend, config, EngineLimits(max_model_len=LONGEST, **given), clock=lambda: 0.0)
    shared = np.random.default_rng(5).integers(1, config.vocab, LONGEST).tolist()
    for i, length in enumerate(PROMPTS):
        prompt = [*shared[: length // 2], *np.random.default_rng(i).integers(1, config.vocab, length - length // 2)]
        sampling = SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True, n=1 + (i == 2))
        engine.submit(Request(id=str(i), tokens=[int(token) for token in prompt], sampling=sampling))
    found: Tokens = {}
    while engine.has_work:
        for output in engine.step():
            found.setdefault((output.id, output.index), []).extend(output.tokens)
        engine.check()
    return found, engine


@cache
def expected(pattern: str) -> Tokens:
    """One sequence at a time, nothing cached, by the reference."""
    config, weights = model(pattern)
    backend = ReferenceBackend(config, weights, num_blocks=100, block_size=BLOCK, max_model_len=LONGEST)
    return serve(backend, config, max_running=2, prefix_caching=False)[0]


@pytest.mark.parametrize("host_blocks", [0, 60])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_answers_in_a_small_pool_are_those_of_the_reference(kernels: Kernels, pattern: str, host_blocks: int) -> None:
    config, weights = model(pattern)
    tables = len(pool_layout(config).groups)
    backend = CpuBackend.create(
        config, weights, kernels=kernels, num_blocks=9 * tables, block_size=BLOCK, max_batched_tokens=64,
        max_model_len=LONGEST, max_running=8, dtype="float32", threads=2,
    )  # fmt: skip
    found, engine = serve(backend, config, host_blocks=host_blocks)
    assert found == expected(pattern)
    scheduler = engine.scheduler
    assert scheduler.hit_tokens > 0
    assert (scheduler.swaps > 0) == (scheduler.preemptions > 0 and host_blocks > 0)
    assert backend.kv_bytes == 9 * tables * BLOCK * pool_layout(config).depth * 2 * 2 * 16 * 4
