"""Latent attention against a numpy decoder that expands keys and values, and the bits of a token in any company."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.support.latent import LATENT, latent_config, latent_oracle, latent_weights

from octavo_inference.backends.cpu.backend import CpuBackend
from octavo_inference.backends.cpu.footprint import measure
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.packed_formats import packed_bytes
from octavo_inference.common.errors import ModelError
from octavo_inference.core.gather import SampleRows
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import LatentAttention
from octavo_inference.models.weights import Weights

from .test_forward import Story, batch_of, create, stories
from .test_quantised import random_blocks

WITH_QUERY_LATENT = replace(LATENT, query_rank=32)
ODD = LatentAttention(kv_rank=96, nope_dim=48, rope_dim=32, value_dim=32, query_rank=64)
MODELS = {
    "direct queries": latent_config(),
    "a latent of queries": latent_config(WITH_QUERY_LATENT),
    "odd sizes": latent_config(ODD, heads=7),
    "many heads": latent_config(heads=53, layers=1),  # more rows than an item has
}


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def config(request: pytest.FixtureRequest) -> ModelConfig:
    model: ModelConfig = request.param
    return model


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-3), ("bfloat16", 0.15)])
def test_logits_of_a_ragged_batch(kernels: Kernels, config: ModelConfig, dtype: str, atol: float) -> None:
    rng = np.random.default_rng(0)
    weights, given = latent_weights(config, rng), stories(rng, [1, 5, 33, 64, 100])
    expected = np.stack([latent_oracle(config, weights, story.tokens)[-1] for story in given])
    found = create(config, weights, kernels, dtype=dtype).logits(batch_of(given))
    np.testing.assert_allclose(found, expected, atol=atol)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_long_contexts(kernels: Kernels, config: ModelConfig, dtype: str) -> None:
    """Several segments of 512 keys: whole prompts, then decodes alone and together, and chunks of a few tokens."""
    rng = np.random.default_rng(0)
    config, lengths = replace(config, layers=1), (1100, 513, 512, 40)
    weights = latent_weights(config, rng)
    places = iter(rng.permutation(70).tolist())
    given = [
        Story(rng.integers(0, config.vocab, n).tolist(), [next(places) for _ in range(-(-n // 32))], 0, n)
        for n in lengths
    ]
    sizes = {"num_blocks": 70, "max_batched_tokens": 1100, "max_model_len": 1100}
    backend = create(config, weights, kernels, dtype=dtype, **sizes)
    at_once = np.concatenate([backend.logits(batch_of([story])) for story in given])
    expected = latent_oracle(config, weights, given[0].tokens)[-1]
    np.testing.assert_allclose(at_once[0], expected, atol=1e-3 if dtype == "float32" else 0.15)
    last = [replace(story, start=story.end - 1) for story in given]
    np.testing.assert_array_equal(np.concatenate([backend.logits(batch_of([story])) for story in last]), at_once)
    np.testing.assert_array_equal(backend.logits(batch_of(last)), at_once)
    assert backend._buffers["partials"].any()
    backend._model.partial_floats = 0  # no room: an item has all segments of its rows
    np.testing.assert_array_equal(backend.logits(batch_of(last)), at_once)
    chunks = [replace(story, start=story.end - 7) for story in given]
    np.testing.assert_array_equal(backend.logits(batch_of(chunks)), at_once)


def quantized(config: ModelConfig, rng: np.random.Generator) -> Weights:
    """Weights whose matrices are in blocks of GGUF, the expansions of latents too."""
    weights = latent_weights(config, rng)

    def mixer(index: int) -> dict[str, object]:
        latent = weights.layers[index].latent
        assert latent is not None
        names = ["kv_down", "k_up", "v_up", "q"] if latent.q is not None else ["kv_down", "k_up", "q_down", "q_up"]
        return {name: random_blocks(rng, "q8_0", *getattr(latent, name).shape, scale=0.0015) for name in names}

    layers = [
        replace(layer, latent=replace(layer.latent, **mixer(number)))  # type: ignore[type-var, arg-type]
        for number, layer in enumerate(weights.layers)
    ]
    return replace(weights, layers=tuple(layers))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "auto"])
def test_a_prompt_at_once_and_token_by_token(kernels: Kernels, config: ModelConfig, dtype: str) -> None:
    rng, length = np.random.default_rng(0), 45
    weights = quantized(config, rng) if dtype == "auto" else latent_weights(config, rng)
    backend = create(config, weights, kernels, dtype=dtype, max_running=length)
    given = [Story(rng.integers(0, config.vocab, length).tolist(), [6 * i, 6 * i + 1], 0, length) for i in range(4)]
    every = SampleRows.greedy(np.arange(length, dtype=np.int32), np.full(length, length, np.int32))
    at_once = np.stack([backend.logits(replace(batch_of([story]), sample=every)) for story in given])
    for at in range(length):
        steps = [replace(story, blocks=[block + 3 for block in story.blocks], start=at, end=at + 1) for story in given]
        np.testing.assert_array_equal(backend.logits(batch_of(steps)), at_once[:, at])


def test_quantized_expansions_become_floats_and_the_log_says_so(
    kernels: Kernels, caplog: pytest.LogCaptureFixture
) -> None:
    rng, config = np.random.default_rng(0), MODELS["direct queries"]
    weights, given = quantized(config, rng), stories(rng, [40, 70])
    backend = create(config, weights, kernels, dtype="auto")
    expected = np.stack([latent_oracle(config, weights, story.tokens)[-1] for story in given])
    error = np.linalg.norm(backend.logits(batch_of(given)) - expected) / np.linalg.norm(expected)
    assert error < 0.05
    assert "q8_0 that expands latents head by head (4 linears, first k_up of layer 0)" in caplog.text
    assert packed_bytes(weights, "auto") <= backend._packed.size <= packed_bytes(weights, "auto") * 1.2


def test_memory_is_what_was_foreseen(kernels: Kernels, config: ModelConfig) -> None:
    config = replace(config, vocab=16_000)
    weights = latent_weights(config, np.random.default_rng(0))
    footprint = measure(weights, config)
    backend = create(config, weights, kernels, max_batched_tokens=300, max_running=7, threads=3, num_blocks=5)
    assert backend.working_bytes <= footprint.token * 300 + footprint.row * (7 + 3)
    assert backend.kv_bytes == 4 * footprint.kv_elements * 5 * 32
    latent = config.latent
    assert latent is not None
    assert footprint.kv_elements == config.layers * (latent.kv_rank + latent.rope_dim)
    for dtype, format_ in (("bfloat16", "bf16"), ("float32", "f32")):
        packed = CpuBackend.create(config, weights, kernels=kernels, dtype=dtype, **SIZES)._packed.size  # type: ignore[arg-type]
        assert packed_bytes(weights, format_) <= packed <= packed_bytes(weights, format_) * 1.2  # type: ignore[arg-type]


SIZES = {"num_blocks": 2, "max_batched_tokens": 16, "max_running": 1, "max_model_len": 32}


def test_blocks_are_copied_and_swapped_as_they_are(kernels: Kernels, rng: np.random.Generator) -> None:
    config = MODELS["direct queries"]
    backend = create(config, latent_weights(config, rng), kernels)
    tokens = rng.integers(0, config.vocab, 41).tolist()
    backend.logits(batch_of([Story(tokens, [3, 4], 0, 40)]))
    backend.copy_blocks([(3, 10), (4, 11)])
    backend.from_host(backend.to_host([3, 4]), [20, 21])
    again = backend.logits(batch_of([Story(tokens, blocks, 40, 41) for blocks in ([3, 4], [10, 11], [20, 21])]))
    np.testing.assert_array_equal(again[0], again[1])
    np.testing.assert_array_equal(again[0], again[2])


@pytest.mark.parametrize(
    ("latent", "named"),
    [(replace(LATENT, kv_rank=48), "kv_rank size is 48"), (replace(LATENT, rope_dim=8), "rope_dim size is 8")],
)
def test_sizes_without_kernels_are_refused_by_name(kernels: Kernels, latent: LatentAttention, named: str) -> None:
    config = replace(latent_config(latent), head_dim=32)
    with pytest.raises(ModelError, match=named):
        create(config, latent_weights(config, np.random.default_rng(0)), kernels)
