"""How layers are divided into groups that share a block table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layer_groups import LayerGroup, PoolLayout, pool_layout
from octavo_inference.models.layers import LayerParts
from octavo_protocol.kv_tables import blocks_held, longest_held, tokens_held

PLAIN = ModelConfig(
    architecture="llama",
    layers=12,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=64,
    vocab=100,
    max_positions=32_768,
    rope_theta=10_000.0,
    norm_eps=1e-5,
    tied_embeddings=True,
    eos_token_ids=(0,),
)


def alternating(layers: int, period: int, window: int) -> ModelConfig:
    """Every `period`-th layer has full attention."""
    windows = tuple(None if (layer + 1) % period == 0 else window for layer in range(layers))
    return replace(PLAIN, layers=layers, windows=windows)


def summary(layout: PoolLayout) -> tuple[int, int, int]:
    """Depth, groups with full attention, and those with windows."""
    full = sum(group.is_full for group in layout.groups)
    return layout.depth, full, len(layout.groups) - full


@pytest.mark.parametrize(
    ("config", "expected", "waste"),
    [
        (PLAIN, (12, 1, 0), 0),
        (alternating(62, 6, 1024), (5, 2, 11), 0.05),  # Gemma 3 27B
        (alternating(48, 6, 1024), (8, 1, 5), 0),  # 12B
        (alternating(34, 6, 1024), (5, 1, 6), 0.03),  # 4B
        (alternating(26, 6, 512), (2, 2, 11), 0),  # 1B
        (alternating(46, 2, 4096), (23, 1, 1), 0),  # Gemma 2 27B
        (alternating(24, 2, 128), (12, 1, 1), 0),  # gpt-oss-20b
        (alternating(32, 4, 4096), (8, 1, 3), 0),  # Command R7B
        (replace(PLAIN, layers=32, windows=(4096,) * 32), (32, 0, 1), 0),  # Mistral 7B v0.1
        (replace(PLAIN, layers=48, chunks=(8192, 8192, 8192, None) * 12), (12, 1, 3), 0),  # Llama 4 Scout
    ],
)
def test_known_models(config: ModelConfig, expected: tuple[int, int, int], waste: float) -> None:
    layout = pool_layout(config)
    assert summary(layout) == expected
    assert len(layout.groups) * layout.depth / config.layers - 1 <= waste
    assert layout.token_bytes(config, 2) <= (1 + waste) * config.kv_bytes_per_token(2)


def test_a_window_of_the_longest_sequence_is_full_attention() -> None:
    assert summary(pool_layout(replace(alternating(12, 2, 4096), max_positions=4096))) == (12, 1, 0)


def test_all_layers_of_an_encoder_use_the_same_places() -> None:
    config = replace(alternating(12, 2, 128), bidirectional=True)
    layout = pool_layout(config)
    assert summary(layout) == (1, 1, 0)
    assert {layout.place(layer) for layer in range(12)} == {(0, 0)}
    assert layout.token_bytes(config, 2) == config.kv_bytes_per_token(2) // 12
    unlike = replace(config, parts=tuple(LayerParts(kv_heads=1 + layer % 2) for layer in range(12)))
    assert summary(pool_layout(unlike)) == (12, 1, 0), "places of unlike layers have unlike sizes"


def test_layers_without_attention_belong_to_no_group() -> None:
    parts = (LayerParts(), LayerParts(attention=False, state=True)) * 6
    layout = pool_layout(replace(PLAIN, parts=parts))
    assert layout.groups == (LayerGroup((0, 2, 4, 6, 8, 10)),)
    assert layout.place(4) == (0, 2)
    with pytest.raises(KeyError, match="layer 3 has no K and V"):
        layout.place(3)


def test_layers_of_unlike_sizes_share_one_table() -> None:
    parts = (LayerParts(kv_heads=2), LayerParts(kv_heads=1)) * 6
    assert summary(pool_layout(replace(alternating(12, 2, 128), parts=parts))) == (12, 1, 0)


KINDS = st.sampled_from([None, 16, 64])


@given(st.lists(st.tuples(KINDS, KINDS), min_size=1, max_size=40))
def test_each_layer_has_one_place(kinds: list[tuple[int | None, int | None]]) -> None:
    windows, chunks = zip(*kinds, strict=True)
    config = replace(PLAIN, layers=len(kinds), windows=windows, chunks=chunks)
    layout = pool_layout(config)
    places = [layout.place(layer) for layer in range(len(kinds))]
    assert len(set(places)) == len(kinds)
    assert all(at < layout.depth for _, at in places)
    assert len(layout.groups) <= 16
    for layer, (number, _) in enumerate(places):
        group = layout.groups[number]
        assert (group.window, group.chunk) == (windows[layer], chunks[layer])
    assert [group.is_full for group in layout.groups] == sorted((g.is_full for g in layout.groups), reverse=True)


@given(
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.integers(1, 40)),
    st.integers(1, 200),
)
def test_what_is_needed(window: int | None, chunk: int | None, position: int) -> None:
    group = LayerGroup((0,), window, chunk)
    seen = [
        key
        for key in range(position + 1)
        if (window is None or position - key < window) and (chunk is None or key // chunk == position // chunk)
    ]
    assert group.first_needed(position) == seen[0]
    if not group.is_full:
        assert group.reach is not None
        assert position - seen[0] <= group.reach
        passed = next(p for p in range(position + 100) if group.first_needed(p) >= position)
        assert group.passed(position) == passed


@given(st.integers(1, 300), st.integers(1, 50), st.integers(1, 17))
def test_sums_of_blocks(tokens: int, chunk: int, block_size: int) -> None:
    kinds = PoolLayout((LayerGroup((0,)), LayerGroup((1,), window=20), LayerGroup((2,), window=20)), 1).kinds
    held = blocks_held(kinds, tokens, chunk, block_size)
    whole = -(-tokens // block_size)
    assert whole <= held <= 3 * whole
    longest = longest_held(kinds, held, chunk, block_size, 1000)
    assert longest >= tokens
    assert blocks_held(kinds, longest, chunk, block_size) <= held < blocks_held(kinds, longest + 1, chunk, block_size)
    assert tokens_held(kinds, held, chunk, block_size, tokens) >= tokens
    assert tokens_held(kinds, held - 1, chunk, block_size, tokens) == longest_held(
        kinds, held - 1, chunk, block_size, tokens
    )
    generating = blocks_held(kinds, tokens, 1, block_size)
    assert tokens_held(kinds, 99 * generating, chunk, block_size, tokens) == 99 * tokens
    assert blocks_held((), tokens, chunk, block_size) == whole
    assert tokens_held((), 7, chunk, block_size, tokens) == 7 * block_size
