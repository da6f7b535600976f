"""A model cut into ranks: all of it is there, nothing is copied, and what cannot be cut is refused with what can."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.common.errors import SettingsError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.groups import GroupedMatrix, Grouping, Groups
from octavo_inference.models.layers import Experts, LayerParts
from octavo_inference.models.shard import require_shards, shard, vocab_share
from octavo_inference.models.weights import ExpertWeights, LayerWeights, Tensor, Weights, dequantize

ROWS = ("q", "gate", "up")
SHARED = ("k", "v")
COLUMNS = ("o", "down")


def matrix(rng: np.random.Generator, rows: int, cols: int, kind: str) -> Tensor:
    if kind == "f32":
        return Tensor("f32", (rows, cols), rng.standard_normal((rows, cols), np.float32))
    blocks = rng.integers(0, 256, (rows, cols // 32, 34), dtype=np.uint8)
    blocks[..., :2] = np.array(0.5, np.float16).reshape(1).view(np.uint8)
    return Tensor("q8_0", (rows, cols), blocks.reshape(rows, -1))


def model(
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 8,
    inner: int = 8,
    vocab: int = 197,
    kind: str = "f32",
    tied: bool = True,
) -> tuple[ModelConfig, Weights]:
    rng, hidden = np.random.default_rng(heads * inner + vocab), 32

    def vector(size: int) -> Tensor:
        return Tensor("f32", (size,), rng.standard_normal(size, np.float32))

    shapes = {
        "q": (heads * head_dim, hidden),
        "k": (kv_heads * head_dim, hidden),
        "v": (kv_heads * head_dim, hidden),
        "o": (hidden, heads * head_dim),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    layer = LayerWeights(
        input_norm=vector(hidden),
        post_norm=vector(hidden),
        q_norm=vector(head_dim),
        k_norm=vector(kv_heads * head_dim),
        k_norm_bias=vector(kv_heads * head_dim),
        **{name: matrix(rng, *shape, kind) for name, shape in shapes.items()},
        **{f"{name}_bias": vector(shape[0]) for name, shape in shapes.items()},
    )
    embedding = matrix(rng, vocab, hidden, kind)
    head = embedding if tied else matrix(rng, vocab, hidden, kind)
    config = ModelConfig(
        "llama", 1, hidden, heads, kv_heads, head_dim, inner, vocab, 64, 1e4, 1e-5, tied, (2,), digest="d"
    )
    return config, Weights(embedding, (layer,), vector(hidden), head, head_bias=vector(vocab))


@given(
    size=st.sampled_from([1, 2, 4, 8]),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    per_kv=st.integers(1, 3),
    inner=st.integers(1, 3),
    vocab=st.integers(897, 1000),
    kind=st.sampled_from(["f32", "q8_0"]),
    tied=st.booleans(),
)
@settings(max_examples=scaled(60), deadline=None)
def test_the_shards_make_the_whole(
    size: int, kv_heads: int, per_kv: int, inner: int, vocab: int, kind: str, tied: bool
) -> None:
    heads = kv_heads * per_kv
    if heads % size:
        heads = kv_heads = max(size, kv_heads)
    config, weights = model(
        heads=heads, kv_heads=kv_heads, head_dim=32, inner=32 * size * inner, vocab=vocab, kind=kind, tied=tied
    )
    parts = [shard(config, weights, rank=rank, size=size) for rank in range(size)]
    whole = weights.layers[0]
    for name in (*ROWS, *(f"{name}_bias" for name in ROWS)):
        same(getattr(whole, name), [getattr(part.layers[0], name) for _, part in parts], 0)
    replicas = max(1, size // kv_heads)
    # Norms of each head go with it.
    for name in (*SHARED, *(f"{name}_bias" for name in SHARED), "k_norm", "k_norm_bias"):
        copies = [getattr(part.layers[0], name) for _, part in parts]
        assert all(np.array_equal(c.data, copies[i // replicas * replicas].data) for i, c in enumerate(copies))
        same(getattr(whole, name), copies[::replicas], 0)
    for name in COLUMNS:
        same(getattr(whole, name), [getattr(part.layers[0], name) for _, part in parts], 1)
        biases = [getattr(part.layers[0], f"{name}_bias") for _, part in parts]
        assert biases == [getattr(whole, f"{name}_bias"), *[None] * (size - 1)]
    same(weights.lm_head, [part.lm_head for _, part in parts], 0)
    same(weights.head_bias, [part.head_bias for _, part in parts], 0)
    for rank, (described, part) in enumerate(parts):
        layer = part.layers[0]
        dim = described.head_dim
        assert (described.heads * dim, described.kv_heads * dim) == (layer.q.shape[0], layer.k.shape[0])
        assert (described.intermediate, described.vocab) == (layer.gate.shape[0], vocab)
        assert part.embedding is weights.embedding
        assert (layer.input_norm, layer.q_norm) == (whole.input_norm, whole.q_norm)
        assert np.shares_memory(part.lm_head.data, weights.lm_head.data)
        assert np.shares_memory(layer.down.data, whole.down.data)
        assert (
            part.lm_head.shape[0] == min(vocab_share(vocab, size), vocab - rank * vocab_share(vocab, size)) or size == 1
        )
        # The heads of a rank read the key-value heads that they read in the whole.
        per = config.heads // config.kv_heads
        for head in range(described.heads):
            own = head // (described.heads // described.kv_heads)
            first = (rank * described.heads + head) // per * dim
            assert np.array_equal(dequantize(layer.k)[own * dim :][:dim], dequantize(whole.k)[first:][:dim])


def same(whole: Tensor, parts: list[Tensor], axis: int) -> None:
    assert all(part.format == whole.format for part in parts)
    assert np.array_equal(np.concatenate([dequantize(part) for part in parts], axis), dequantize(whole))


@pytest.mark.parametrize(
    ("given_model", "size", "sentence"),
    [
        ({}, 3, "tensor_parallel_size 3: the model has 4 attention heads, which 3 does not divide; use 1, 2, 4"),
        (
            {"heads": 12, "kv_heads": 6, "inner": 24},
            4,
            "the model has 6 key-value heads, which 4 neither divides nor is a multiple of; use 1, 2, 3",
        ),
        ({"inner": 6}, 4, "6 inner elements of its MLP, which 4 does not divide; use 1, 2"),
        ({"vocab": 32}, 4, "a vocabulary of 32 tokens leaves the last of 4 ranks without one; use 1, 2"),
        (
            {"kind": "q8_0", "head_dim": 32, "inner": 96},
            2,
            "96 columns in q8_0 blocks of 32 cannot be cut into 2 runs of whole blocks; use 1",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused_with_what_can(given_model: dict, size: int, sentence: str) -> None:
    config, weights = model(**given_model)
    with pytest.raises(SettingsError, match="tensor_parallel_size") as refused:
        shard(config, weights, rank=0, size=size)
    assert str(refused.value).endswith(sentence)
    assert refused.value.field == "tensor_parallel_size"


@pytest.mark.parametrize("part", [LayerParts(attention=False), LayerParts(intermediate=4)])
def test_layers_of_their_own_are_refused(part: LayerParts) -> None:
    config, weights = model()
    with pytest.raises(SettingsError, match=r"layers of unlike sizes or without attention or MLP.*; use 1$"):
        require_shards(replace(config, parts=(part,)), weights, 2)


def test_norms_over_all_heads_are_refused() -> None:
    config, weights = model()
    with pytest.raises(SettingsError, match=r"normalizes queries over all heads together.*; use 1$"):
        require_shards(replace(config, qk_norm="whole"), weights, 2)


def test_k_quants_are_cut_at_their_larger_blocks() -> None:
    config, weights = model(heads=8, kv_heads=8, head_dim=64, inner=512, vocab=400)
    rows = Tensor("q4_k", (32, 512), np.zeros((32, 2 * 144), np.uint8))
    weights = replace(weights, layers=(replace(weights.layers[0], down=rows),))
    part = shard(config, weights, rank=1, size=2)[1].layers[0].down
    assert (part.shape, part.data.shape) == ((32, 256), (32, 144))
    with pytest.raises(SettingsError, match="512 columns in q4_k blocks of 256 cannot be cut into 4 runs"):
        require_shards(config, weights, 4)


def grouped(grouping: Grouping, columns: int, order: np.ndarray | None = None) -> GroupedMatrix:
    """A matrix of 32 rows of random values and scales."""
    rng = np.random.default_rng(columns)
    limit = 16 if grouping.kind == "int4" else 120
    groups = Groups(
        rng.integers(0, limit, (32, columns), np.uint8),
        rng.uniform(0.5, 1, (32, columns // grouping.group)).astype(np.float32),
        rng.uniform(-1, 0, (32, columns // grouping.group)).astype(np.float32) if grouping.minimum else None,
    )
    return GroupedMatrix("a format", (32, columns), grouping, groups.rows, order=order)


def with_down(matrix: GroupedMatrix) -> tuple[ModelConfig, Weights]:
    config, weights = model(heads=8, kv_heads=8, inner=matrix.shape[1], vocab=997)
    return config, replace(weights, layers=(replace(weights.layers[0], down=matrix),))


@pytest.mark.parametrize(
    ("grouping", "size", "group"),
    [
        (Grouping("fp8", 384), 2, 192),  # a scale for each row
        (Grouping("fp8", 384), 8, 48),
        (Grouping("int4", 128, minimum=True), 2, 64),  # 192 columns end inside of a group
        (Grouping("int4", 128), 4, 32),
        (Grouping("int4", 32), 4, 32),
        (Grouping("int4", 1, minimum=True), 2, 1),  # becomes floats
    ],
)
def test_groups_are_cut_into_smaller_ones_with_the_same_scales(grouping: Grouping, size: int, group: int) -> None:
    matrix = grouped(grouping, 384)
    model_ = with_down(matrix)
    parts = [shard(*model_, rank=rank, size=size)[1].layers[0].down for rank in range(size)]
    for part in parts:
        assert isinstance(part, GroupedMatrix)
        assert (part.shape, part.grouping) == ((32, 384 // size), replace(grouping, group=group))
        assert part.read(3, 5).scale.shape == (2, 384 // size // group)
    assert np.array_equal(np.concatenate([dequantize(part) for part in parts], 1), dequantize(matrix))


@pytest.mark.parametrize(
    ("matrix", "size", "sentence"),
    [
        (
            grouped(Grouping("fp8", 96), 96),
            4,
            "96 columns in a format blocks of 16 cannot be cut into 4 runs of whole blocks; use 1, 2",
        ),
        (
            grouped(Grouping("int4", 32), 128, np.arange(128, dtype=np.int32)[::-1]),
            2,
            r"its a format weights are sorted by group (act-order), which mixes those of ranks; use 1",
        ),
    ],
)
def test_groups_that_cannot_be_cut(matrix: GroupedMatrix, size: int, sentence: str) -> None:
    with pytest.raises(SettingsError, match="tensor_parallel_size") as refused:
        require_shards(*with_down(matrix), size)
    assert str(refused.value).endswith(sentence)


def mixture(inner: int = 8, shared: int = 4, *, dense: bool = False) -> tuple[ModelConfig, Weights]:
    """A layer with three experts, biases and a gated shared MLP; with `dense`, another one with an MLP before it."""
    rng, hidden = np.random.default_rng(inner), 32
    config, weights = model(inner=6)

    def values(rows: int, columns: int) -> Tensor:
        return matrix(rng, rows, columns, "f32")

    def each(rows: int, columns: int) -> tuple[Tensor, ...]:
        return tuple(values(rows, columns) for _ in range(3))

    experts = ExpertWeights(
        router=values(3, hidden), gate=each(inner, hidden), up=each(inner, hidden), down=each(hidden, inner),
        router_bias=values(1, 3), gate_bias=values(3, inner), up_bias=values(3, inner), down_bias=values(3, hidden),
        shared_gate=values(shared, hidden), shared_up=values(shared, hidden), shared_down=values(hidden, shared),
        shared_router=values(1, hidden),
    )  # fmt: skip
    layer = replace(weights.layers[0], gate=None, up=None, down=None, experts=experts)
    described = Experts(count=3, chosen=2, intermediate=inner, shared=shared, shared_gate=True)
    parts = (LayerParts(),) * dense + (LayerParts(feed_forward="experts"),)
    config = replace(config, layers=len(parts), experts=described, parts=parts)
    return config, replace(weights, layers=weights.layers * dense + (layer,))


def test_each_expert_is_cut_like_an_mlp_and_the_router_is_whole() -> None:
    config, weights = mixture()
    whole = weights.layers[0].experts
    parts = [shard(config, weights, rank=rank, size=4) for rank in range(4)]
    cut = [part.layers[0].experts for _, part in parts]
    assert all((one.experts.intermediate, one.experts.shared) == (2, 1) for one, _ in parts)
    for expert in range(3):
        for name, axis in (("gate", 0), ("up", 0), ("down", 1)):
            same(getattr(whole, name)[expert], [getattr(part, name)[expert] for part in cut], axis)
    for name, axis in (("gate_bias", 1), ("up_bias", 1), ("shared_gate", 0), ("shared_up", 0), ("shared_down", 1)):
        same(getattr(whole, name), [getattr(part, name) for part in cut], axis)
    # Added once to a sum.
    assert [part.down_bias for part in cut] == [whole.down_bias, None, None, None]
    assert all(part.router is whole.router and part.shared_router is whole.shared_router for part in cut)


@pytest.mark.parametrize(
    ("given_model", "size", "sentence"),
    [
        ({"inner": 6}, 4, "6 inner elements of each expert, which 4 does not divide; use 1, 2"),
        ({"shared": 6}, 4, "6 inner elements of its shared experts, which 4 does not divide; use 1, 2"),
        ({"dense": True}, 4, "6 inner elements of its MLP, which 4 does not divide; use 1, 2"),
    ],
)
def test_experts_that_cannot_be_cut(given_model: dict, size: int, sentence: str) -> None:
    with pytest.raises(SettingsError) as refused:
        require_shards(*mixture(**given_model), size)
    assert str(refused.value).endswith(sentence)


@pytest.mark.parametrize(
    ("down", "sentence"),
    [
        (Tensor("q8_0", (32, 32), np.zeros((32, 34), np.uint8)), "32 columns in q8_0 blocks of 32 cannot be cut into"),
        (grouped(Grouping("int4", 32), 32, np.arange(32, dtype=np.int32)[::-1]), "are sorted by group (act-order)"),
    ],
    ids=["blocks", "an order of columns"],
)
def test_the_columns_of_experts_are_cut_in_whole_blocks(down: Tensor | GroupedMatrix, sentence: str) -> None:
    config, weights = mixture(inner=32)
    experts = replace(weights.layers[0].experts, down=(down,) * 3)
    weights = replace(weights, layers=(replace(weights.layers[0], experts=experts),))
    with pytest.raises(SettingsError) as refused:
        require_shards(config, weights, 2)
    assert sentence in str(refused.value)
