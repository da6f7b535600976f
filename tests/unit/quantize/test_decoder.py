"""The decoder that calibrates computes what the reference backend computes, and AWQ's scales change nothing in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.core.gather import Batch, SampleRows
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layer_groups import pool_layout
from octavo_inference.models.rope import LinearScaling
from octavo_inference.models.weights import Tensor, Weights, dequantize, layer_of
from octavo_inference.tools.quantize import awq, decoder
from octavo_inference.tools.quantize.decoder import layer_values
from octavo_inference.tools.quantize.grid import Grid
from octavo_inference.tools.quantize.layer import quantize_layer

CONFIG = ModelConfig(
    architecture="llama",
    layers=2,
    hidden=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    intermediate=64,
    vocab=50,
    max_positions=64,
    rope_theta=10000.0,
    norm_eps=1e-5,
    tied_embeddings=True,
    eos_token_ids=(0,),
)
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "no groups": {"kv_heads": 4},
    "biases": {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "norms of q and k": {"qk_norm": "head"},
    "gemma": {
        "output_norms": True,
        "windows": (7, None),
        "attention_softcap": 5.0,
        "logit_softcap": 3.0,
        "activation": "gelu_tanh",
        "embedding_scale": 2.0,
        "query_scale": 0.3,
    },
    "granite": {"residual_scale": 0.3, "logit_scale": 0.5},
    "rope": {"rotary_dim": 4, "rope_scaling": LinearScaling(4.0), "rotated": (True, False)},
}
GRIDS = dict.fromkeys(("qkv", "o", "gate_up", "down"), Grid(4, 32))


def tiny(**changes: Any) -> tuple[ModelConfig, Weights]:
    config = replace(CONFIG, **changes)
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> Tensor:
        values = rng.standard_normal((rows, columns)) * 1.5 * columns**-0.5
        return Tensor("f32", (rows, columns), values.astype(np.float32))

    def vector(size: int, mean: float = 0.0) -> Tensor:
        return Tensor("f32", (size,), (mean + 0.3 * rng.standard_normal(size)).astype(np.float32))

    def layer() -> Any:
        made = layer_of(config, matrix, lambda size: vector(size, 1.0))
        biased = [n for n, on in (("q k v", config.qkv_bias), ("o", config.output_bias)) if on for n in n.split()]
        biased += ["gate", "up", "down"] if config.mlp_bias else []
        return replace(made, **{f"{name}_bias": vector(getattr(made, name).shape[0]) for name in biased})

    embedding = matrix(config.vocab, config.hidden)
    return config, Weights(embedding, (layer(), layer()), vector(config.hidden, 1.0), embedding)


def hidden_of(config: ModelConfig, weights: Weights, tokens: np.ndarray) -> np.ndarray:
    return dequantize(weights.embedding)[tokens] * np.float32(config.embedding_scale)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_the_reference(variant: str) -> None:
    config, weights = tiny(**VARIANTS[variant])
    tokens = np.random.default_rng(1).integers(0, config.vocab, 29)
    hidden = hidden_of(config, weights, tokens)
    for number, layer in enumerate(weights.layers):
        hidden = decoder.forward(config, number, layer_values(layer), hidden)
    found = decoder.logits(config, dequantize(weights.final_norm), weights.lm_head, hidden)

    groups = np.arange(len(pool_layout(config).groups), dtype=np.int32)
    backend = ReferenceBackend(config, weights, num_blocks=2 * len(groups), block_size=16, max_model_len=32)
    positions = np.arange(29, dtype=np.int32)
    batch = Batch(
        tokens=tokens.astype(np.int32),
        positions=positions,
        slots=32 * groups[:, None] + positions,
        query_start=np.array([0, 29], np.int32),
        seq_len=np.array([29], np.int32),
        block_table=2 * groups[:, None, None] + np.array([[0, 1]], np.int32),
        sample=SampleRows.greedy(positions, positions + 1),
    )
    np.testing.assert_allclose(found, backend.logits(batch), atol=2e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_scaled_channels_change_nothing(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, weights = tiny(**VARIANTS[variant])
    rng = np.random.default_rng(2)
    windows = rng.standard_normal((3, 20, config.hidden)).astype(np.float32)
    monkeypatch.setattr(
        awq, "search", lambda matrix, *_: np.exp(rng.standard_normal(matrix.shape[1])).astype(np.float32)
    )
    layer = layer_values(weights.layers[0])
    scaled = awq.scaled_layer(config, 0, layer, windows, GRIDS)
    changed = {name for name in layer if not np.array_equal(layer[name], scaled[name])}
    assert {"input_norm", "q", "k", "v", "post_norm", "gate", "up", "down"} <= changed
    assert ("o" in changed) == (config.heads == config.kv_heads)
    for window in windows:
        expected = decoder.forward(config, 0, layer, window)
        np.testing.assert_allclose(
            decoder.forward(config, 0, scaled, window), expected, atol=2e-5 * np.abs(expected).max()
        )


@pytest.mark.parametrize("method", ["rtn", "gptq", "awq"])
def test_a_layer_computes_with_what_is_stored(method: Any) -> None:
    config, weights = tiny()
    windows = np.random.default_rng(4).standard_normal((2, 20, config.hidden)).astype(np.float32)
    layer, after = quantize_layer(config, 0, layer_values(weights.layers[0]), windows, GRIDS, method)
    assert set(layer.rounded) == {"q", "k", "v", "o", "gate", "up", "down"}
    for name, rounded in layer.rounded.items():
        np.testing.assert_array_equal(layer.values[name], rounded.values())
    if method != "rtn":
        np.testing.assert_array_equal(after[1], decoder.forward(config, 0, layer.values, windows[1]))


def test_a_stage_without_a_grid_stays_in_16_bits() -> None:
    config, weights = tiny()
    windows = np.random.default_rng(5).standard_normal((2, 20, config.hidden)).astype(np.float32)
    source = layer_values(weights.layers[0])
    layer, _ = quantize_layer(config, 0, source, windows, {"down": Grid(8)}, "gptq")
    assert set(layer.rounded) == {"down"}
    np.testing.assert_allclose(layer.values["q"], source["q"], rtol=2**-8)
    assert not np.any(layer.values["q"].view(np.uint32) & 0xFFFF)
