"""Mixtures of experts: logits against numpy, every packed format, the same bits in any company, counted tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from octavo_inference.backends.cpu.backend import CpuBackend
from octavo_inference.backends.cpu.footprint import _working, measure
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.packed_formats import packed_bytes
from octavo_inference.common.errors import ModelError
from octavo_inference.core.gather import SampleRows
from octavo_inference.models.groups import Grouping
from octavo_inference.models.layers import Experts
from octavo_inference.models.weights import Matrix, Weights

from .mixtures import Of, random_mixture, with_experts
from .test_forward import Story, batch_of, create, oracle, stories
from .test_grouped_models import of_size_one
from .test_quantised import random_blocks

PLAIN = Experts(count=8, chosen=2, intermediate=48)
CASES: dict[str, tuple[Experts, int, dict[str, object], dict[str, bool]]] = {
    "Mixtral": (PLAIN, 0, {}, {}),
    "Qwen2-MoE": (replace(PLAIN, normalized=False, shared=80, shared_gate=True), 0, {"qkv_bias": True}, {}),
    "Qwen3-MoE": (replace(PLAIN, count=33, chosen=8), 0, {"qk_norm": "head"}, {}),
    "OLMoE": (replace(PLAIN, normalized=False), 0, {}, {}),
    "GraniteMoE": (
        replace(PLAIN, scoring="softmax_of_chosen", shared=32),
        0,
        {"residual_scale": 0.3, "embedding_scale": 12.0, "logit_scale": 0.25},
        {},
    ),
    "DeepSeek V2": (
        replace(PLAIN, groups=4, chosen_groups=2, chosen=3, scale=16.0, normalized=False, shared=96),
        1,
        {"layers": 3},
        {},
    ),
    "DeepSeek V3": (
        replace(
            PLAIN,
            count=16,
            chosen=4,
            scoring="sigmoid",
            groups=4,
            chosen_groups=2,
            group_score="best_two",
            scale=2.5,
            shared=48,
        ),
        1,
        {"layers": 3},
        {"corrected": True},
    ),
    "Llama 4": (replace(PLAIN, chosen=1, scoring="sigmoid", normalized=False, input_scaled=True, shared=48), 0, {}, {}),
    "gpt-oss": (
        replace(PLAIN, scoring="softmax_of_chosen", clamp=0.7),
        0,
        {"qkv_bias": True, "output_bias": True},
        {"biased": True, "router_biased": True},
    ),
    "norm of outputs": (replace(PLAIN, shared=16), 0, {"output_norms": True, "activation": "gelu_tanh"}, {}),
    "all experts": (replace(PLAIN, count=3, chosen=3), 0, {}, {}),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_logits_of_a_ragged_batch(kernels: Kernels, rng: np.random.Generator, case: str) -> None:
    experts, dense, changes, tensors = CASES[case]
    config = with_experts(experts, dense, **changes)
    weights = random_mixture(config, rng, **tensors)
    given = stories(rng, [1, 5, 33, 64, 100])
    expected = np.stack([oracle(config, weights, s.tokens)[-1] for s in given])
    backend = create(config, weights, kernels)
    np.testing.assert_allclose(backend.logits(batch_of(given)), expected, atol=2e-3)
    last = [replace(story, start=story.end - 1) for story in given]
    np.testing.assert_allclose(backend.logits(batch_of(last)), expected, atol=2e-3)
    np.testing.assert_allclose(backend.logits(batch_of(last[:1])), expected[:1], atol=2e-3)
