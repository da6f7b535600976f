"""Models with state layers on the CUDA backend, its kernels interpreted: what the reference gives."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.backends.cuda.weight_loading import device_bytes
from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.core.backend import Backend
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import LayerParts, StateLayer
from octavo_inference.models.weights import LayerWeights, Weights

from ..unit.cpu.decoders import tensor  # noqa: TID252 -- as above
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

BLOCK, LONGEST, ROWS, SNAPSHOTS, WORDS = 8, 160, 8, 6, 61
TINY_MAMBA = replace(MAMBA, heads=4, head_dim=10, state=12, groups=2)
MODELS: dict[str, tuple[StateLayer, tuple[LayerParts, ...]]] = {
    "granite": (replace(TINY_MAMBA, groups=1), (STATE, ATTENTION, STATE)),
    "falcon": (replace(TINY_MAMBA, norm_groups=2, norm_first=True), (BOTH, BOTH)),
    "falcon without norm": (replace(TINY_MAMBA, norm_groups=0), (BOTH, STATE)),
    "nemotron": (
        replace(TINY_MAMBA, norm_groups=2, dt_least=0.01),
        (MLP_ALONE, STATE_ALONE, replace(ATTENTION, feed_forward="none"), MLP_ALONE),
    ),
    "qwen": (replace(DELTA, value_dim=20), (STATE, ATTENTION)),
    "lfm2": (CONV, (STATE, ATTENTION, STATE)),
    "mamba2": (TINY_MAMBA, (STATE_ALONE, STATE_ALONE)),
}
FEW, FULL = ("granite", "qwen", "mamba2"), pytest.mark.full
NAMES = [pytest.param(name, marks=[] if name in FEW else FULL) for name in MODELS]
PROMPTS = [np.random.default_rng(i).integers(0, 60, size).tolist() for i, size in enumerate((3, 13, 37))]
AGAIN = [*PROMPTS[2][:34], 7, 8]


@cache
def model(name: str) -> tuple[ModelConfig, Weights]:
    """Qwen's attention has a gate, biases are in Granite's layers."""
    state, parts = MODELS[name]
    config = state_config(state, *parts, residual_scale=0.5, vocab=WORDS, attention_gate=name == "qwen")
    rng = np.random.default_rng(1)
    weights = random_model(config, rng, bias=name == "granite")
    if not config.attention_gate:
        return config, weights

    def with_gate(layer: LayerWeights) -> LayerWeights:
        return layer if layer.q is None else replace(layer, attention_gate=tensor(rng, *layer.q.shape))

    return config, replace(weights, layers=tuple(map(with_gate, weights.layers)))


def cuda(name: str, blocks: int = 48) -> CudaBackend:
    return CudaBackend.create(
        *model(name),
        device=find_device(),
        num_blocks=blocks,
        block_size=BLOCK,
        max_batched_tokens=128,
        max_running=ROWS,
        max_model_len=LONGEST,
        state_slots=ROWS + SNAPSHOTS,
        dtype=torch.float32,
    )


def run(backend: Backend, **limits: Any) -> Runner:
    """All prompts together, half greedy, half sampled, and one with two answers; then one with a known beginning."""
    given = {"budget": 120, "max_running": ROWS, "host_state_blocks": 1} | limits
    runner = make_runner(backend, max_model_len=LONGEST, **given)
    for i, prompt in enumerate(PROMPTS):
        runner.submit(str(i), prompt, temperature=i % 2, seed=i, max_tokens=3, ignore_eos=True)
    runner.submit("two", PROMPTS[1], temperature=1.0, top_p=0.9, seed=9, n=2, max_tokens=3, ignore_eos=True)
    runner.finish()
    runner.submit("again", AGAIN, temperature=0, max_tokens=3, ignore_eos=True)
    runner.finish()
    return runner


@cache
def expected(name: str) -> dict[tuple[str, int], list[int]]:
    """What the reference answers without snapshots."""
    backend = ReferenceBackend(
        *model(name), num_blocks=48, block_size=BLOCK, max_model_len=LONGEST, state_slots=ROWS + SNAPSHOTS
    )
    return run(backend, caching=False).tokens


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_the_reference(name: str) -> None:
    assert run(cuda(name), caching=False).tokens == expected(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_in_chunks_continues_from_a_snapshot(name: str) -> None:
    runner = run(cuda(name), budget=21)
    assert runner.tokens == expected(name)
    assert runner.engine.scheduler.hit_tokens > 0
    assert runner.final["again", 0].cached_tokens > 0


@pytest.mark.parametrize(
    ("name", "host_blocks"),
    [
        # Sequences of state layers alone need no blocks, so that none is preempted.
        *(pytest.param(name, 0, marks=FULL) for name in MODELS if name != "mamba2"),
        pytest.param("granite", 40),
        *(pytest.param(name, 40, marks=FULL) for name in MODELS if name not in {"granite", "mamba2"}),
    ],
)
def test_preempted_sequences_continue_with_their_state(name: str, host_blocks: int) -> None:
    runner = run(cuda(name, blocks=8), host_blocks=host_blocks)
    assert runner.tokens == expected(name)
    scheduler = runner.engine.scheduler
    assert scheduler.preemptions > 0
    assert (scheduler.swaps > 0) == (host_blocks > 0)


def test_states_pass_through_the_host_and_are_copied_between_slots() -> None:
    backend = cuda("granite")
    states = backend._decoder.context.states.data
    states.copy_(torch.randn(states.shape))
    before = states.clone()
    saved = backend.states_to_host([2, 13, 5])
    assert saved.shape == (3, 2, backend._decoder.context.states.shape.elements)
    backend.states_from_host(saved[1:], [0, 11])
    backend.copy_states([(2, 4), (3, 12)])
    moved = {0: 13, 11: 5, 4: 2, 12: 3}
    for slot in range(ROWS + SNAPSHOTS):
        assert torch.equal(states[:, slot], before[:, moved.get(slot, slot)]), slot


@pytest.mark.parametrize("name", NAMES)
def test_all_weights_are_planned(name: str) -> None:
    backend = cuda(name)
    assert backend._decoder.weights.nbytes == device_bytes(*model(name), dtype=torch.float32)
    assert backend.state_slots == ROWS + SNAPSHOTS


def test_the_pool_has_the_layers_with_attention_alone() -> None:
    backend = cuda("granite")
    assert len(backend._decoder.context.pool.data) == 1
    assert len(backend._decoder.context.states.data) == 2
