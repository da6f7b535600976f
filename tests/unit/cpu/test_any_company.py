"""A row's result is the same bits whatever rows are computed with it: every row count, every weight format.

A tile of each row count is compiled on its own. All must order and fuse the same sums, or a request's answer depends
on the requests beside it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from octavo_inference.backends.cpu.backend import CpuBackend
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.packing import Packed, Packer, address
from octavo_inference.core.gather import SampleRows
from octavo_inference.models.ggml_dequant import BlockFormat
from octavo_inference.models.layers import LayerParts
from octavo_inference.models.weights import Tensor

from .test_forward import MIXED, TINY, Story, batch_of, create, quantised_weights, random_weights
from .test_linear import Float32, linear, stored
from .test_quantised import BLOCKS, random_blocks, round_rows

MORE = 3  # rows beyond two full tiles
TILE_ROWS = 32  # of AMX


def test_a_row_of_a_float_linear(kernels: Kernels, team: int, rng: np.random.Generator) -> None:
    most = 2 * max(kernels.info.max_rows, TILE_ROWS) + MORE
    for format_, cols in (("bf16", 256), ("f32", 256), ("bf16", 48)):  # 48 columns are no whole number of tiles
        weights, a = rng.standard_normal((70, cols), np.float32), rng.standard_normal((most, cols), np.float32)
        packed = Packed()
        matrix = Packer(kernels, team, format_, packed).matrix((stored(weights),), biases=(stored(weights[:, 0]),))
        alone = np.concatenate([linear(kernels, team, matrix, a[i : i + 1]) for i in range(most)])
        for rows in range(2, most + 1):
            np.testing.assert_array_equal(linear(kernels, team, matrix, a[:rows]), alone[:rows])
            np.testing.assert_array_equal(linear(kernels, team, matrix, a[-rows:]), alone[-rows:])


@pytest.mark.parametrize("format_", BLOCKS)
def test_a_row_of_a_quantised_linear(
    kernels: Kernels, team: int, rng: np.random.Generator, format_: BlockFormat
) -> None:
    most = 2 * max(kernels.info.max_rows, TILE_ROWS) + MORE
    packed = Packed()
    matrix = Packer(kernels, team, "auto", packed).matrix((random_blocks(rng, format_, 70, 512),))
    a = rng.standard_normal((most, 512), np.float32)

    def product(rows: Float32) -> Float32:
        blocks = round_rows(kernels, rows)
        out = np.empty((len(rows), matrix.rows), np.float32)
        kernels.library.octavo_linear(team, matrix, address(blocks), address(blocks), len(rows), address(out))
        return out

    alone = np.concatenate([product(a[i : i + 1]) for i in range(most)])
    for rows in range(2, most + 1):
        np.testing.assert_array_equal(product(a[:rows]), alone[:rows])
        np.testing.assert_array_equal(product(a[-rows:]), alone[-rows:])


EVERYTHING: dict[str, object] = {
    "heads": 6,
    "kv_heads": 2,
    "head_dim": 48,
    "qk_norm": "head",
    "windows": (9, None),
    "output_norms": True,
    "activation": "gelu_tanh",
    "attention_softcap": 5.0,
    "logit_softcap": 3.0,
    "embedding_scale": 3.0,
    "residual_scale": 0.3,
}


# Flags that EVERYTHING cannot have at the same time.
OTHERS: dict[str, object] = {
    "layers": 3,
    "layer_norm": True,
    "heads": 6,
    "kv_heads": 2,
    "head_dim": 48,
    "qk_norm": "whole",
    "parallel": True,
    "gated": False,
    "activation": "gelu",
    "sinks": True,
    "alibi": 1.0,
    "chunks": (None, 24, None),
    "learned_positions": 256,
    "embedding_norm": True,
    "rotated": (True, False, True),
    "query_temperature": (8.0, 0.3),
    "head_bias": True,
    "parts": (LayerParts(), LayerParts(heads=2, kv_heads=1, intermediate=64), LayerParts(feed_forward="none")),
}


@pytest.fixture(params=["float32", "bfloat16", "auto"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[{}, EVERYTHING, OTHERS], ids=["llama", "everything", "others"])
def backend(request: pytest.FixtureRequest, kernels: Kernels, rng: np.random.Generator, dtype: str) -> CpuBackend:
    config = replace(TINY, hidden=96, intermediate=128, **request.param)
    weights = quantised_weights(config, rng, MIXED) if dtype == "auto" else random_weights(config, rng)
    # As large as those of a trained model: the softmax leaves out little, and a wrong last bit shows.
    weights = replace(weights, final_norm=Tensor("f32", (96,), np.full(96, 3, np.float32)))
    return create(config, weights, kernels, dtype=dtype, max_running=32, num_blocks=64)


def test_a_step_of_decode(kernels: Kernels, backend: CpuBackend, rng: np.random.Generator) -> None:
    most = 2 * kernels.info.max_rows + MORE
    given = [Story(rng.integers(0, TINY.vocab, 20 + i).tolist(), [2 * i, 2 * i + 1], 0, 19 + i) for i in range(most)]
    for story in given:
        backend.logits(batch_of([story]))
    given = [replace(story, start=story.end, end=story.end + 1) for story in given]
    alone = np.concatenate([backend.logits(batch_of([story])) for story in given])
    for rows in range(2, most + 1):
        np.testing.assert_array_equal(backend.logits(batch_of(given[:rows])), alone[:rows])


def test_a_prompt_in_chunks_of_every_length(kernels: Kernels, backend: CpuBackend, rng: np.random.Generator) -> None:
    most = 2 * kernels.info.max_rows + MORE
    tokens = rng.integers(0, TINY.vocab, 40 + most).tolist()
    expected = backend.logits(batch_of([Story(tokens, [1, 7, 4], 0, len(tokens))]))
    for length in range(1, most + 1):
        for start in range(0, len(tokens), length):
            found = backend.logits(batch_of([Story(tokens, [5, 2, 6], start, min(start + length, len(tokens)))]))
        np.testing.assert_array_equal(found, expected)


def test_a_prompt_at_once_and_token_by_token(kernels: Kernels, rng: np.random.Generator, dtype: str) -> None:
    """Many rows of attention: a sum that is off by one unit in the last place seldom survives rounding to bfloat16."""
    length, count = 72, 16
    config = replace(TINY, layers=1, hidden=96, heads=9, kv_heads=3, head_dim=64, intermediate=128)
    weights = quantised_weights(config, rng) if dtype == "auto" else random_weights(config, rng)
    backend = create(config, weights, kernels, dtype=dtype, max_running=length, num_blocks=6 * count)
    tokens = [rng.integers(0, TINY.vocab, length).tolist() for _ in range(count)]
    given = [Story(words, [6 * i, 6 * i + 1, 6 * i + 2], 0, length) for i, words in enumerate(tokens)]
    every = SampleRows.greedy(np.arange(length, dtype=np.int32), np.full(length, length, np.int32))
    at_once = np.stack([backend.logits(replace(batch_of([story]), sample=every)) for story in given])
    given = [replace(story, blocks=[block + 3 for block in story.blocks]) for story in given]
    for at in range(length):
        found = backend.logits(batch_of([replace(story, start=at, end=at + 1) for story in given]))
        np.testing.assert_array_equal(found, at_once[:, at])
