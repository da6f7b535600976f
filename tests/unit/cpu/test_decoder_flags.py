"""Flags of a decoder's description, alone and in combination: the native step against the reference backend."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.backends.cpu.footprint import _working
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.backends.reference.functions import activate
from octavo_inference.common.errors import ModelError, SettingsError
from octavo_inference.models.config import Activation, ModelConfig
from octavo_inference.models.layer_groups import pool_layout
from octavo_inference.models.layers import LayerParts
from octavo_inference.models.weights import Tensor, Weights

from .decoders import random_weights
from .test_forward import TINY, Float32, Story, batch_of, create, stories

BASE = replace(TINY, layers=3, vocab=83, max_positions=256)
LENGTHS = (1, 6, 33, 50)
PRUNED = (
    LayerParts(heads=2, kv_heads=1, intermediate=48),
    LayerParts(attention=False),
    LayerParts(heads=6, kv_heads=2, feed_forward="none"),
)
# As the families have them.
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt-2": {
        "layer_norm": True,
        "norm_biases": True,
        "learned_positions": 256,
        "rotated": (False,) * 3,
        "gated": False,
        "activation": "gelu_tanh",
        **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), True),
    },
    "gpt-neox": {
        "layer_norm": True,
        "norm_biases": True,
        "parallel": True,
        "gated": False,
        "activation": "gelu",
        "rotary_dim": 8,
        "mlp_bias": True,
    },
    "bloom": {
        "layer_norm": True,
        "norm_biases": True,
        "heads": 6,
        "kv_heads": 6,
        "alibi": 1.0,
        "rotated": (False,) * 3,
        "embedding_norm": True,
        "gated": False,
        "activation": "gelu_tanh",
    },
    "mpt": {"layer_norm": True, "alibi": 1.0, "rotated": (False,) * 3, "gated": False, "qkv_clip": 0.4},
    "phi": {
        "layer_norm": True,
        "norm_biases": True,
        "qk_norm": "head",
        "parallel": True,
        "shared_norm": True,
        "gated": False,
        "head_bias": True,
    },
    "command-r": {
        "layer_norm": True,
        "qk_norm": "head",
        "norms_by_head": True,
        "parallel": True,
        "shared_norm": True,
        "logit_scale": 0.3,
    },
    "command-a": {
        "layer_norm": True,
        "parallel": True,
        "shared_norm": True,
        "windows": (9, 9, None),
        "rotated": (True, True, False),
    },
    "olmo": {"layer_norm": True, "bare_norms": True, "qkv_clip": 0.5},
    "olmo-2": {"input_norms": False, "output_norms": True, "qk_norm": "whole"},
    "exaone-4": {
        "input_norms": False,
        "output_norms": True,
        "qk_norm": "head",
        "windows": (9, 9, None),
        "rotated": (True, True, False),
    },
    "arcee": {"gated": False, "activation": "relu2"},
    "apertus": {"gated": False, "activation": "xielu", "qk_norm": "head"},
    "gpt-oss": {"sinks": True, "windows": (8, None, 8), "qkv_bias": True, "output_bias": True},
    "llama-4": {
        "chunks": (16, 16, None),
        "rotated": (True, True, False),
        "qk_norm": "head",
        "qk_norm_rotated": True,
        "bare_norms": True,
        "query_temperature": (8.0, 0.3),
    },
    "bert": {
        "layer_norm": True,
        "norm_biases": True,
        "learned_positions": 256,
        "token_types": True,
        "embedding_norm": True,
        "rotated": (False,) * 3,
        "input_norms": False,
        "post_residual_norms": True,
        "bidirectional": True,
        "gated": False,
        "activation": "gelu",
        **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias", "head_bias"), True),
    },
    "modernbert": {"layer_norm": True, "bidirectional": True, "windows": (None, 12, 5), "activation": "gelu"},
    "relu": {"gated": False, "activation": "relu", "intermediate": 80, "mlp_bias": True},
    "deci": {"parts": PRUNED},
}
KINDS = ("bare_norms", "norm_biases", "norms_by_head", "token_types")


def reference(config: ModelConfig, weights: Weights, told: list[Story]) -> Float32:
    """Logits after each sequence by the reference backend."""
    torch.set_num_threads(1)
    step = batch_of(told)
    blocks = 1 + int(step.block_table.max())
    longest = max(story.end for story in told)
    return ReferenceBackend(config, weights, num_blocks=blocks, block_size=32, max_model_len=longest).logits(step)


@cache
def case(flags: frozenset[tuple[str, Any]]) -> tuple[ModelConfig, Weights, list[Story], Float32]:
    """A model, sequences, and the logits after each: once for all variants of the kernels."""
    rng = np.random.default_rng(0)
    given = dict(flags)
    kinds = {kind: given.pop(kind) for kind in KINDS if kind in given}
    config = replace(BASE, **given)
    weights = random_weights(config, rng, **kinds)
    told = sequences(rng, LENGTHS)
    return config, weights, told, reference(config, weights, told)


def sequences(rng: np.random.Generator, lengths: tuple[int, ...]) -> list[Story]:
    return [replace(story, tokens=[t % BASE.vocab for t in story.tokens]) for story in stories(rng, list(lengths))]


def check(kernels: Kernels, flags: dict[str, Any]) -> None:
    """Compare the logits of prompts at once, and those of chunks and decodes."""
    config, weights, told, expected = case(frozenset(flags.items()))
    backend = create(config, weights, kernels)
    at_once = backend.logits(batch_of(told))
    np.testing.assert_allclose(at_once, expected, atol=2e-3, err_msg=str(flags))
    if not config.bidirectional:
        borders = [[0, story.end * 2 // 3, story.end - 1, story.end] for story in told]
        for first, end in ((0, 1), (1, 2), (2, 3)):
            parts = [replace(s, start=b[first], end=b[end]) for s, b in zip(told, borders, strict=True)]
            found = backend.logits(batch_of([part for part in parts if part.end > part.start]))
        np.testing.assert_array_equal(found, at_once)


@pytest.mark.parametrize("family", FAMILIES)
def test_flags_of_a_family(kernels: Kernels, family: str) -> None:
    check(kernels, FAMILIES[family])


NORMS: list[dict[str, Any]] = [
    {},
    {"output_norms": True},
    {"input_norms": False, "output_norms": True},
    {"input_norms": False, "post_residual_norms": True},
    {"parallel": True},
    {"parallel": True, "shared_norm": True},
    {"input_norms": False},
]
SIZES: list[dict[str, Any]] = [
    {},
    {"heads": 6, "kv_heads": 1, "head_dim": 32},
    {"heads": 9, "kv_heads": 3, "hidden": 80, "intermediate": 48},
    {"heads": 1, "kv_heads": 1, "head_dim": 48},
    {"parts": PRUNED},
    {"parts": PRUNED[::-1]},
]
QK_NORMS: list[dict[str, Any]] = [
    {},
    {"qk_norm": "whole"},
    {"qk_norm": "head"},
    {"qk_norm": "head", "norms_by_head": True},
    {"qk_norm": "head", "qk_norm_rotated": True},
    {"qk_norm": "whole", "qk_norm_rotated": True},
]
VISIBLE: list[dict[str, Any]] = [
    {},
    {"windows": (7, None, 34)},
    {"chunks": (16, None, 5)},
    {"chunks": (16, None, 33), "windows": (9, 40, None)},
    {"bidirectional": True},
    {"bidirectional": True, "windows": (8, None, 33)},
]


@st.composite
def combinations(draw: st.DrawFn) -> dict[str, Any]:
    switches = ("layer_norm", "gated", "sinks", "embedding_norm", "qkv_bias", "output_bias", "mlp_bias")
    flags = {name: draw(st.booleans()) for name in (*switches, "head_bias", "norm_biases", "bare_norms")}
    if not flags["layer_norm"]:
        flags["norm_biases"] = False
    for choices in (NORMS, SIZES, QK_NORMS, VISIBLE):
        flags |= draw(st.sampled_from(choices))
    return flags | {
        "alibi": draw(st.sampled_from([0.0, 1.0, 0.25])),
        "activation": draw(st.sampled_from(["silu", "gelu_tanh", "gelu", "relu", "relu2", "xielu"])),
        "rotated": draw(st.sampled_from([(), (True, False, True), (False, False, True)])),
        "learned_positions": draw(st.sampled_from([0, 256])),
        "token_types": draw(st.booleans()),
        "qkv_clip": draw(st.sampled_from([None, 0.5])),
        "query_temperature": draw(st.sampled_from([None, (8.0, 0.3)])),
        "attention_softcap": draw(st.sampled_from([None, 4.0])),
        "residual_scale": draw(st.sampled_from([1.0, 0.4])),
    }


@pytest.mark.slow
@settings(max_examples=scaled(30), deadline=None, derandomize=True)
@given(flags=combinations())
def test_flags_in_combination(kernels: Kernels, flags: dict[str, Any]) -> None:
    check(kernels, flags)


LONG: tuple[dict[str, Any], ...] = (
    {"sinks": True},
    {"sinks": True, "windows": (20,), "heads": 6},
    {"alibi": 1.0, "heads": 6, "kv_heads": 6},
    {"chunks": (300,), "heads": 16, "kv_heads": 1},
    {"chunks": (600,), "sinks": True, "alibi": 1.0},
    {"bidirectional": True},
    {"bidirectional": True, "windows": (700,), "sinks": True},
)


@cache
def long_case(number: int) -> tuple[ModelConfig, Weights, list[Story], Float32]:
    rng = np.random.default_rng(0)
    config = replace(BASE, layers=1, max_positions=2048, **LONG[number])
    weights = random_weights(config, rng)
    told, first = [], 0
    # Around the borders of a segment of 512 keys and of a chunk of 32. With the short ones, heads of a sequence are
    # items together.
    for length in (1100, 513, 512, 481, 40, *[20] * 30):
        count = -(-length // 32)
        told.append(Story(rng.integers(0, BASE.vocab, length).tolist(), list(range(first, first + count)), 0, length))
        first += count
    return config, weights, told, reference(config, weights, told)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(LONG)), ids=[str(flags) for flags in LONG])
def test_long_contexts(kernels: Kernels, number: int) -> None:
    """Several segments of keys: the same bits however a sequence is divided over threads and steps."""
    config, weights, told, expected = long_case(number)
    sizes = {"num_blocks": 200, "max_batched_tokens": 3400, "max_model_len": 1100, "max_running": len(told)}
    for dtype, atol in (("float32", 2e-3), ("bfloat16", 0.1)):
        backend = create(config, weights, kernels, dtype=dtype, **sizes)
        at_once = backend.logits(batch_of(told))
        np.testing.assert_allclose(at_once, expected, atol=atol)
        alone = [backend.logits(batch_of([story]))[0] for story in told[:5]]
        np.testing.assert_array_equal(alone, at_once[:5])
        if config.bidirectional:
            continue
        for few in (1, 2, 7):
            chunks = [replace(story, start=story.end - few) for story in told]
            np.testing.assert_array_equal(backend.logits(batch_of(chunks)), at_once)
            np.testing.assert_array_equal(backend.logits(batch_of(chunks[:1])), at_once[:1])


@pytest.mark.parametrize("family", ["bert", "deci", "olmo-2", "arcee", "gpt-2"])
def test_the_plan_counts_all_buffers(kernels: Kernels, family: str) -> None:
    config, weights, _, _ = case(frozenset(FAMILIES[family].items()))
    backend = create(config, weights, kernels, max_batched_tokens=300, max_running=7, threads=3)
    token, row = _working(replace(config, vocab=16_000))
    assert backend.working_bytes <= token * 300 + row * (7 + 3)
    assert backend.kv_bytes == pool_layout(config).token_bytes(config, 4) * 32 * 24


def test_blocks_of_unlike_layers_are_copied_and_kept(kernels: Kernels) -> None:
    config, weights, told, expected = case(frozenset(FAMILIES["deci"].items()))
    backend, story = create(config, weights, kernels), told[-1]
    backend.logits(batch_of([replace(story, blocks=[20, 21], end=49)]))
    backend.copy_blocks([(20, 3), (21, 9)])
    saved = backend.to_host([20, 21])
    backend.clear_blocks([20, 21])
    backend.from_host(saved, [7, 5])
    for blocks in ([3, 9], [7, 5]):
        found = backend.logits(batch_of([replace(story, blocks=blocks, start=49)]))
        np.testing.assert_allclose(found[0], expected[-1], atol=2e-3)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu", "relu", "relu2", "xielu"])
def test_activations_of_large_small_and_no_numbers(
    kernels: Kernels, rng: np.random.Generator, activation: Activation, gated: bool
) -> None:
    x = np.concatenate([np.linspace(-12, 12, 107), [-300, 300, -1e-3, 1e-3, np.nan]]).astype(np.float32)
    config = replace(BASE, layers=1, gated=gated, activation=activation, mlp_bias=True)
    weights = random_weights(config, rng)
    layer = weights.layers[0]
    # What the activation is applied to is the bias alone.
    given = {"up": zeros(112, 64), "up_bias": Tensor("f32", (112,), x)}
    if gated:
        given = {"gate": given["up"], "gate_bias": given["up_bias"], "up": given["up"], "up_bias": ones(112)}
    backend = create(config, replace(weights, layers=(replace(layer, **given),)), kernels)
    backend.logits(batch_of(sequences(rng, (2,))))
    xielu = None if layer.xielu is None else torch.from_numpy(layer.xielu.data.copy())
    expected = activate(activation, torch.from_numpy(x), xielu).numpy()
    np.testing.assert_allclose(backend._buffers["activated"][1], expected, rtol=2e-6, atol=1e-6)


def zeros(*shape: int) -> Tensor:
    return Tensor("f32", shape, np.zeros(shape, np.float32))


def ones(*shape: int) -> Tensor:
    return Tensor("f32", shape, np.ones(shape, np.float32))


def test_more_positions_than_are_learned_are_refused(kernels: Kernels, rng: np.random.Generator) -> None:
    config = replace(BASE, learned_positions=100)
    with pytest.raises(SettingsError, match="max_model_len is 256; the model has embeddings of 100 positions"):
        create(config, random_weights(config, rng), kernels)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (LayerParts(heads=5, kv_heads=2), "5 attention heads cannot share 2"),
        (LayerParts(intermediate=100), "intermediate size is 100"),
    ],
)
def test_sizes_of_one_layer_that_the_kernels_cannot_run_are_refused(
    kernels: Kernels, rng: np.random.Generator, part: LayerParts, message: str
) -> None:
    config = replace(BASE, parts=(LayerParts(), part, LayerParts()))
    with pytest.raises(ModelError, match=message):
        create(config, random_weights(config, rng), kernels)
