"""Adapters cut into ranks: merged into the parts of the weights, they are the parts of the merged weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.adapters import merged, random_adapter
from tests.support.latent import LATENT, latent_config, latent_weights
from tests.support.tiers import scaled

from octavo_inference.backends.cuda.adapter_layout import FIELDS
from octavo_inference.common.errors import ModelError
from octavo_inference.models.adapter import Adapter, LowRank, require_supported
from octavo_inference.models.adapter_shard import shard_adapter
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.shard import shard
from octavo_inference.models.weights import Tensor, Weights, dequantize, part_tensors

from .test_shard import mixture, model


def matrices(weights: Weights) -> list[str]:
    """The names of the matrices of layers that adapters may change."""
    found = {name: tensor for layer in weights.layers for name, tensor in part_tensors(layer)}
    return [name for name, tensor in found.items() if len(tensor.shape) == 2 and not name.endswith(("_bias", "router"))]


def gated() -> tuple[ModelConfig, Weights]:
    """A gate of attention's outputs, and no gate of the MLP."""
    config, weights = model()
    gate = Tensor("f32", (32, 32), np.random.default_rng(2).standard_normal((32, 32), np.float32))
    layers = tuple(replace(layer, attention_gate=gate, gate=None, gate_bias=None) for layer in weights.layers)
    return replace(config, attention_gate=True, gated=False), replace(weights, layers=layers)


def latent(query_rank: int | None) -> tuple[ModelConfig, Weights]:
    config = latent_config(replace(LATENT, query_rank=query_rank))
    return config, latent_weights(config, np.random.default_rng(4))


MODELS: dict[str, Callable[[], tuple[ModelConfig, Weights]]] = {
    "tied": model,
    "untied": partial(model, tied=False, vocab=203),
    "quantised": partial(model, kind="q8_0", head_dim=32, inner=128, tied=False),
    "one key-value head": partial(model, kv_heads=1),
    "four key-value heads": partial(model, kv_heads=4),
    "gated": gated,
    "experts": mixture,
    "latents": partial(latent, None),
    "latents of queries": partial(latent, 32),
}


def adapter_of(weights: Weights, rng: np.random.Generator, rank: int, kept: float, biased: float) -> Adapter:
    """Changes of some of the matrices, some with biases; only-biases among them."""
    whole = random_adapter(weights, rng, rank, matrices(weights), outer=True)
    layers = []
    for layer in whole.layers:
        changes = {}
        for name, part in layer.items():
            if rng.random() > kept:
                continue
            # Not where weights of models have none, as `merged` reads them.
            if "." not in name and name != "attention_gate" and rng.random() < biased:
                bias = rng.standard_normal(len(part.up)).astype(np.float32)
                only = rng.random() < 0.3
                down, up = (np.empty((0, 0), np.float32), part.up[:, :0]) if only else (part.down, part.up)
                part = LowRank(down, up, bias)  # noqa: PLW2901 -- the changed one
            changes[name] = part
        layers.append(changes)
    return replace(whole, layers=tuple(layers))


def merge(weights: Weights, adapter: Adapter) -> Weights:
    """`merged`, where changes without columns are of biases alone."""
    shapes = [{name: tensor.shape for name, tensor in part_tensors(layer)} for layer in weights.layers]
    layers = tuple(
        {
            name: part if part.rank else replace(part, down=np.empty((0, shapes[number][name][1]), np.float32))
            for name, part in layer.items()
        }
        for number, layer in enumerate(adapter.layers)
    )
    return merged(weights, replace(adapter, layers=layers))


@pytest.mark.parametrize("name", MODELS)
@given(
    size=st.sampled_from([1, 2, 4]),
    rank=st.integers(1, 5),
    kept=st.sampled_from([0.3, 1.0]),
    biased=st.sampled_from([0.0, 0.6]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=scaled(8), deadline=None)
def test_the_parts_change_the_parts(name: str, size: int, rank: int, kept: float, biased: float, seed: int) -> None:
    config, weights = MODELS[name]()
    adapter = adapter_of(weights, np.random.default_rng(seed), rank, kept, biased)
    whole = merge(weights, adapter)
    before = [{field: part.up.copy() for field, part in layer.items()} for layer in adapter.layers]
    for place in range(size):
        part = shard_adapter(adapter, config, rank=place, size=size)
        assert part.digest == adapter.digest
        found = merge(shard(config, weights, rank=place, size=size)[1], part)
        wanted = shard(config, whole, rank=place, size=size)[1]
        for ours, theirs in zip(found.tensors(), wanted.tensors(), strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(dequantize(ours), dequantize(theirs), atol=1e-5)
    assert all(
        np.array_equal(before[number][field], part.up)
        for number, layer in enumerate(adapter.layers)
        for field, part in layer.items()
    )


def test_every_matrix_of_a_model_that_can_be_cut_has_a_cut() -> None:
    """Those of state layers are of models that are refused."""
    for make in MODELS.values():
        config, weights = make()
        whole = random_adapter(weights, np.random.default_rng(0), 1, matrices(weights))
        parts = shard_adapter(whole, config, rank=1, size=2)
        assert [set(layer) for layer in parts.layers] == [set(layer) for layer in whole.layers]
        # A rank is sent nothing that it refuses.
        require_supported(parts, FIELDS)


@pytest.mark.parametrize("name", ["state.inputs.0", "experts.router", "experts.shared_router"])
def test_a_matrix_without_a_cut_is_refused_with_its_name(name: str) -> None:
    config, weights = model()
    whole = random_adapter(weights, np.random.default_rng(0), 1, ("q",))
    strange = replace(whole, layers=({name: whole.layers[0]["q"]},))
    with pytest.raises(ModelError, match=rf"changes {name} of layer 0, which is not divided between GPUs"):
        shard_adapter(strange, config, rank=0, size=2)
