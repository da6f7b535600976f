"""Models with state layers on the CUDA backend, its kernels interpreted: what the reference gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.core.backend import Backend
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import LayerParts, StateLayer
from octavo_inference.models.weights import Weights

from ..unit.cpu.state_models import (  # noqa: TID252 -- tests are no package
    ATTENTION,
    BOTH,
    CONV,
    DELTA,
    MAMBA,
    MLP_ALONE,
    STATE,
    STATE_ALONE,
    random_model,
    state_config,
)
from ..unit.engine.echo import Runner, make_runner  # noqa: TID252 -- as above

Model = tuple[ModelConfig, Weights]
BLOCK, LONGEST, ROWS, SNAPSHOTS = 8, 160, 8, 6
SMALL_MAMBA = replace(MAMBA, heads=4, head_dim=10, state=12, groups=2)
MODELS: dict[str, tuple[StateLayer, tuple[LayerParts, ...]]] = {
    "granite": (replace(SMALL_MAMBA, groups=1), (STATE, ATTENTION, STATE)),
    "falcon": (replace(SMALL_MAMBA, norm_groups=2, norm_first=True), (BOTH, BOTH)),
    "falcon without norm": (replace(SMALL_MAMBA, norm_groups=0), (BOTH, STATE)),
    "nemotron": (
        replace(SMALL_MAMBA, norm_groups=2, dt_least=0.01),
        (MLP_ALONE, STATE_ALONE, replace(ATTENTION, feed_forward="none"), MLP_ALONE),
    ),
    "qwen": (replace(DELTA, value_dim=20), (STATE, ATTENTION)),
    "lfm2": (CONV, (STATE, ATTENTION, STATE)),
}
PROMPTS = [np.random.default_rng(i).integers(0, 60, size).tolist() for i, size in enumerate((3, 13, 90))]


def model(name: str, *, bias: bool = False) -> Model:
    state, parts = MODELS[name]
    config = state_config(state, *parts, residual_scale=0.5, vocab=61)
    return config, random_model(config, np.random.default_rng(1), bias=bias)


def cuda(given: Model, blocks: int = 48, **how: Any) -> CudaBackend:
    return CudaBackend.create(
        *given,
        device=find_device(),
        num_blocks=blocks,
        block_size=BLOCK,
        max_batched_tokens=128,
        max_running=ROWS,
        max_model_len=LONGEST,
        state_slots=ROWS + SNAPSHOTS,
        dtype=torch.float32,
        **how,
    )


def reference(given: Model, blocks: int = 48) -> ReferenceBackend:
    return ReferenceBackend(
        *given, num_blocks=blocks, block_size=BLOCK, max_model_len=LONGEST, state_slots=ROWS + SNAPSHOTS
    )


def run(backend: Backend, **limits: Any) -> Runner:
    """All prompts together, half greedy, half sampled, and one with two answers."""
    runner = make_runner(
        backend, max_model_len=LONGEST, host_state_blocks=1, **({"budget": 120, "max_running": ROWS} | limits)
    )
    for i, prompt in enumerate(PROMPTS):
        runner.submit(str(i), prompt, temperature=i % 2, seed=i, max_tokens=5, ignore_eos=True)
    runner.submit("two", PROMPTS[1], temperature=1.0, top_p=0.9, seed=9, n=2, max_tokens=5, ignore_eos=True)
    runner.finish()
    return runner


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_the_reference(name: str) -> None:
    expected = run(reference(model(name)), caching=False).tokens
    assert run(cuda(model(name)), caching=False).tokens == expected
