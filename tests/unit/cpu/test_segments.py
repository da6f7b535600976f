"""Attention over contexts of several segments: the same bits however a sequence is divided over threads and steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from octavo_inference.backends.cpu.footprint import _working, partial_floats
from octavo_inference.backends.cpu.native.library import Kernels

from .test_forward import TINY, Story, batch_of, create, oracle, random_weights

# Around the borders of a segment of 512 keys and of a chunk of 32, and two segments with a part of a third.
LENGTHS = (1100, 513, 512, 481, 40, 17)
SHORT = (20,) * 30  # with these, all heads of a sequence are one item
CASES: tuple[dict[str, object], ...] = (
    {},
    {"heads": 3, "kv_heads": 3, "windows": (513,)},
    {"heads": 9, "kv_heads": 3, "head_dim": 32, "attention_softcap": 5.0},
    {"heads": 6, "kv_heads": 2, "windows": (600,)},
    {"heads": 16, "kv_heads": 1, "windows": (20,)},
    {"heads": 2, "kv_heads": 1, "head_dim": 80, "windows": (512,)},
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("changes", CASES, ids=str)
def test_long_contexts(
    kernels: Kernels, rng: np.random.Generator, changes: dict[str, object], block_size: int, dtype: str
) -> None:
    config = replace(TINY, layers=1, max_positions=2048, **changes)  # type: ignore[arg-type]
    weights = random_weights(config, rng)
    lengths = LENGTHS + SHORT
    counts = [-(-length // block_size) for length in lengths]
    shuffled = iter(rng.permutation(sum(counts)).tolist())
    given = [
        Story(rng.integers(0, config.vocab, length).tolist(), [next(shuffled) for _ in range(count)], 0, length)
        for length, count in zip(lengths, counts, strict=True)
    ]
    sizes = {"num_blocks": sum(counts), "max_batched_tokens": 1100, "max_model_len": 1100, "max_running": len(lengths)}
    backend = create(config, weights, kernels, dtype=dtype, block_size=block_size, **sizes)
    at_once = np.concatenate([backend.logits(batch_of([story], block_size)) for story in given])
    expected = np.stack([oracle(config, weights, story.tokens)[-1] for story in given[: len(LENGTHS)]])
    np.testing.assert_allclose(at_once[: len(LENGTHS)], expected, atol=2e-3 if dtype == "float32" else 0.1)

    # The last token again: of every sequence alone, whose heads and segments are items, then of all, then a few at the
    # end, whose rows fill one tile or two.
    last = [replace(story, start=story.end - 1) for story in given]
    alone = np.concatenate([backend.logits(batch_of([story], block_size)) for story in last])
    np.testing.assert_array_equal(alone, at_once)
    np.testing.assert_array_equal(backend.logits(batch_of(last, block_size)), at_once)
    for few in (2, 7):
        chunks = [replace(story, start=story.end - few) for story in given[: len(LENGTHS)]]
        np.testing.assert_array_equal(backend.logits(batch_of(chunks, block_size)), at_once[: len(LENGTHS)])


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_nothing(kernels: Kernels, rng: np.random.Generator, threads: int) -> None:
    config = replace(TINY, layers=2, max_positions=2048, windows=(None, 520))
    weights = random_weights(config, rng)
    story = Story(rng.integers(0, config.vocab, 1090).tolist(), rng.permutation(69).tolist(), 0, 1090)
    sizes = {"num_blocks": 69, "block_size": 16, "max_batched_tokens": 1090, "max_model_len": 1100, "dtype": "bfloat16"}
    found = []
    for count in (2, threads):
        backend = create(config, weights, kernels, threads=count, **sizes)
        found.append(backend.logits(batch_of([story], 16)))
        found.append(backend.logits(batch_of([replace(story, start=1089)], 16)))
    for each in found[1:]:
        np.testing.assert_array_equal(each, found[0])


@pytest.mark.parametrize("share", [0, 0.3, 0.6])
def test_partial_sums_stay_in_their_buffer(kernels: Kernels, rng: np.random.Generator, share: float) -> None:
    """A sequence whose partial sums do not fit is divided by heads alone, and its logits have the same bits."""
    config = replace(TINY, layers=2, max_positions=2048)
    lengths = (1100, 600, 1090, 513)
    given = [
        Story(rng.integers(0, config.vocab, n).tolist(), list(range(i * 69, i * 69 + 69)), n - 1, n)
        for i, n in enumerate(lengths)
    ]
    sizes = {"num_blocks": 276, "block_size": 16, "max_batched_tokens": 1100, "max_model_len": 1100}
    backend = create(config, random_weights(config, rng), kernels, **sizes)
    for story in given:
        backend.logits(batch_of([replace(story, start=0)], 16))
    expected = backend.logits(batch_of(given, 16))
    partials = backend._buffers["partials"].reshape(-1)
    needed = int(np.flatnonzero(partials).max()) + 1
    partials[:] = 0
    room = int(share * needed)
    backend._model.partial_floats = room
    np.testing.assert_array_equal(backend.logits(batch_of(given, 16)), expected)
    assert partials[:room].any() == (share > 0)
    assert not partials[room:].any()


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_the_plan_counts_all_buffers(kernels: Kernels, rng: np.random.Generator, changes: dict[str, object]) -> None:
    # The plan has a row of logits for each thread; a smaller vocabulary than any model's is less than attention needs.
    config = replace(TINY, layers=1, vocab=16_000, **changes)  # type: ignore[arg-type]
    backend = create(config, random_weights(config, rng), kernels, max_batched_tokens=300, max_running=7, threads=3)
    token, row = _working(config)
    assert backend.working_bytes <= token * 300 + row * (7 + 3)
    assert backend._buffers["partials"].nbytes == 4 * partial_floats(config) * (7 + 3)
