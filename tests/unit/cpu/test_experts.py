"""Mixtures of experts: logits against numpy, every packed format, the same bits in any company, counted tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo_inference.backends.cpu.backend import CpuBackend
from octavo_inference.backends.cpu.footprint import _working, measure
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.packed_formats import packed_bytes
from octavo_inference.common.errors import ModelError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.ggml_dequant import BlockFormat
from octavo_inference.models.groups import Grouping
from octavo_inference.models.layers import Experts
from octavo_inference.models.weights import Matrix, Tensor, Weights

from .decoders import tensor
from .mixtures import Of, random_mixture, with_experts
from .test_forward import Story, batch_of, create, oracle, random_weights, stories
from .test_grouped_models import of_size_one
from .test_groups import FP4
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


QUANTIZED = Experts(count=6, chosen=2, intermediate=256, shared=256, shared_gate=True)


def of_floats(rng: np.random.Generator) -> Of:
    return lambda _, rows, columns: tensor(rng, rows, columns)


def of_blocks(rng: np.random.Generator) -> Of:
    """Gate and up in 4 bits, down in 6, as GGUF files mix them; one expert's gate has another format."""
    gates = count()

    def matrix(role: str, rows: int, columns: int) -> Matrix:
        format_, scale = QUANTISED[role]
        if role == "gate" and next(gates) == 1:
            format_, scale = "q5_k", 1e-4
        return random_blocks(rng, format_, rows, columns, scale=scale)

    return matrix


QUANTISED: dict[str, tuple[BlockFormat, float]] = {"gate": ("q4_k", 1e-4), "up": ("q4_k", 1e-4), "down": ("q6_k", 2e-5)}


def of_groups(grouping: Grouping) -> Callable[[np.random.Generator], Of]:
    return lambda rng: lambda _, rows, columns: of_size_one(rng, grouping, rows, columns)


def of_sorted_columns(rng: np.random.Generator) -> Of:
    """Each expert has orders of columns of its own (act-order): one for gate and up, one for down."""
    orders: list[NDArray[np.int32]] = []
    ups = count()

    def matrix(role: str, rows: int, columns: int) -> Matrix:
        if role == "down" and len(orders) == QUANTIZED.count:
            orders.append(np.arange(columns, dtype=np.int32))
            return tensor(rng, rows, columns)  # the first one has no order
        if role != "up":
            orders.append(rng.permutation(columns).astype(np.int32))
        number = next(ups) if role == "up" else -1
        order = orders[number if number < QUANTIZED.count else -1]
        return replace(of_size_one(rng, Grouping("int4", 64), rows, columns), order=order)

    return matrix


FORMATS: dict[str, Callable[[np.random.Generator], Of]] = {
    "floats": of_floats,
    "GGUF": of_blocks,
    "act-order": of_sorted_columns,
    "int4": of_groups(Grouping("int4", 64, minimum=True)),
    "int4_16": of_groups(Grouping("int4", 16, minimum=True)),
    "int4_symmetric": of_groups(Grouping("int4", 128)),
    "int4_symmetric_16": of_groups(Grouping("int4", 16)),
    "MXFP4": of_groups(Grouping("code4", 32, levels=FP4)),
    "NVFP4": of_groups(Grouping("code4", 16, levels=FP4)),
    "int8": of_groups(Grouping("int8", 128)),
    "int8_minimum": of_groups(Grouping("int8", 64, minimum=True)),
    "fp8": of_groups(Grouping("fp8", 128)),
}


@pytest.fixture(params=FORMATS)
def of(request: pytest.FixtureRequest) -> Callable[[np.random.Generator], Of]:
    return FORMATS[request.param]


def quantized_model(rng: np.random.Generator, of: Callable[[np.random.Generator], Of]) -> tuple[ModelConfig, Weights]:
    config = with_experts(QUANTIZED, hidden=256, layers=1)
    return config, random_mixture(config, rng, of(rng))


def test_quantized_experts_stay_near(
    kernels: Kernels, rng: np.random.Generator, of: Callable[[np.random.Generator], Of]
) -> None:
    config, weights = quantized_model(rng, of)
    given = stories(rng, [1, 40, 70])
    expected = np.stack([oracle(config, weights, s.tokens)[-1] for s in given])
    for dtype, bound in (("auto", 0.1), ("bfloat16", 0.03), ("float32", 1e-4)):
        error = np.linalg.norm(create(config, weights, kernels, dtype=dtype).logits(batch_of(given)) - expected)
        assert error < bound * np.linalg.norm(expected)


def test_orders_of_columns_are_kept(kernels: Kernels, rng: np.random.Generator) -> None:
    config, weights = quantized_model(rng, of_sorted_columns)
    unkept = create(config, weights, kernels, dtype="auto")._packed.unkept
    assert not unkept


def test_quantized_experts_keep_their_size(
    kernels: Kernels, rng: np.random.Generator, of: Callable[[np.random.Generator], Of]
) -> None:
    config, weights = quantized_model(rng, of)
    for dtype, format_ in (("auto", "auto"), ("bfloat16", "bf16"), ("float32", "f32")):
        size = create(config, weights, kernels, dtype=dtype)._packed.size
        # The vocabulary fills no panel, and neither do router and gate.
        assert packed_bytes(weights, format_) <= size <= packed_bytes(weights, format_) * 1.1  # type: ignore[arg-type]
    foreseen = measure(weights, config)
    assert foreseen.weights["bfloat16"] == packed_bytes(weights, "bf16") + weights.embedding.nbytes


def test_a_token_of_quantized_experts_does_not_depend_on_its_batch(
    kernels: Kernels, rng: np.random.Generator, of: Callable[[np.random.Generator], Of]
) -> None:
    config, weights = quantized_model(rng, of)
    backend = create(config, weights, kernels, dtype="auto")
    given = stories(rng, [1, 2, 3, 7, 40, 65, 100])
    together = backend.logits(batch_of(given))
    for i, story in enumerate(given):
        np.testing.assert_array_equal(backend.logits(batch_of([story]))[0], together[i])
        for start in range(0, story.end, 13):
            chunk = backend.logits(batch_of([replace(story, start=start, end=min(start + 13, story.end))]))
        np.testing.assert_array_equal(chunk[0], together[i])


@pytest.fixture(params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def trained_like(case: str, rng: np.random.Generator) -> tuple[ModelConfig, Weights]:
    """Logits as large as those of a trained model: a wrong last bit shows."""
    experts, dense, changes, tensors = CASES[case]
    config = with_experts(experts, dense, **changes)
    weights = random_mixture(config, rng, **tensors)
    norm = np.full(config.hidden, 3, np.float32)
    return config, replace(weights, final_norm=Tensor("f32", norm.shape, norm))


def test_a_step_of_decode_in_any_company(kernels: Kernels, rng: np.random.Generator, case: str, dtype: str) -> None:
    config, weights = trained_like(case, rng)
    most = 3 * kernels.info.max_rows
    backend = create(config, weights, kernels, dtype=dtype, max_running=most, num_blocks=2 * most)
    given = [Story(rng.integers(0, config.vocab, 20 + i).tolist(), [2 * i, 2 * i + 1], 0, 19 + i) for i in range(most)]
    for story in given:
        backend.logits(batch_of([story]))
    given = [replace(story, start=story.end, end=story.end + 1) for story in given]
    alone = np.concatenate([backend.logits(batch_of([story])) for story in given])
    for rows in range(2, most + 1):
        np.testing.assert_array_equal(backend.logits(batch_of(given[:rows])), alone[:rows])


def test_any_number_of_threads(kernels: Kernels, rng: np.random.Generator, case: str, dtype: str) -> None:
    config, weights = trained_like(case, rng)
    given = batch_of(stories(rng, [3, 90]))
    found = [create(config, weights, kernels, dtype=dtype, threads=n).logits(given) for n in (1, 2, 7)]
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_experts_count_their_tokens(kernels: Kernels, rng: np.random.Generator) -> None:
    config = with_experts(PLAIN, 1, layers=3)
    weights = random_mixture(config, rng)
    backend = create(config, weights, kernels)
    assert not counted(backend).any()
    for length in (7, 33):
        backend.logits(batch_of(stories(rng, [length])))
    found = counted(backend)
    assert found.shape == (3, PLAIN.count)
    assert found.sum(1).tolist() == [0, 40 * PLAIN.chosen, 40 * PLAIN.chosen]
    assert found.max() <= 40  # a token chooses an expert once
    dense = replace(config, experts=None, parts=())
    assert create(dense, random_weights(dense, rng), kernels).expert_tokens() is None


def counted(backend: CpuBackend) -> NDArray[np.int64]:
    found = backend.expert_tokens()
    assert found is not None
    return found


def test_tokens_go_to_the_expert_of_the_largest_logit(kernels: Kernels, rng: np.random.Generator) -> None:
    config = with_experts(replace(PLAIN, chosen=1), layers=1)
    weights = random_mixture(config, rng, router_biased=True)
    layer = weights.layers[0]
    assert layer.experts is not None
    bias = Tensor("f32", (8,), np.array([0, 0, 0, 1e4, 0, 0, 0, 0], np.float32))
    weights = replace(weights, layers=(replace(layer, experts=replace(layer.experts, router_bias=bias)),))
    backend = create(config, weights, kernels)
    backend.logits(batch_of(stories(rng, [9])))
    assert counted(backend).tolist() == [[0, 0, 0, 9, 0, 0, 0, 0]]


def test_the_plan_counts_all_buffers(kernels: Kernels, rng: np.random.Generator, case: str) -> None:
    experts, dense, changes, tensors = CASES[case]
    config = with_experts(experts, dense, **{"vocab": 16_000, **changes})
    weights = random_mixture(config, rng, **tensors)
    for quantization in ("auto", "int8"):
        backend = create(
            config,
            weights,
            kernels,
            dtype="auto",
            quantization=quantization,
            max_batched_tokens=300,
            max_running=7,
            threads=3,
        )
        token, row = _working(config)
        assert backend.working_bytes <= token * 300 + row * (7 + 3) + 3 * measure(weights, config).thread


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intermediate": 40}, "the experts' intermediate size is 40"),
        ({"shared": 8}, "the experts' shared size is 8"),
        ({"groups": 3}, "8 experts cannot be in 3 groups"),
        ({"groups": 4, "chosen_groups": 1, "chosen": 3}, "3 experts are chosen of 2"),
        ({"chosen": 9}, "9 experts are chosen of 8"),
    ],
    ids=str,
)
def test_sizes_the_kernels_cannot_run_are_refused(
    kernels: Kernels, rng: np.random.Generator, changes: dict[str, int], message: str
) -> None:
    config = with_experts(replace(PLAIN, **changes))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=message):
        create(config, random_weights(config, rng), kernels)
