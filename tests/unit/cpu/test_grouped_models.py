"""Whole models whose matrices are read in pieces: near float32, the same in any batch, as large as foreseen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.support.logs import warnings_of

from octavo_inference.backends.cpu.footprint import measure
from octavo_inference.backends.cpu.native import abi, decoder_packing
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.packed_formats import packed_bytes, packed_parts
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.groups import GroupedMatrix, Grouping
from octavo_inference.models.weights import Matrix, Weights

from .test_forward import TINY, batch_of, create, oracle, random_weights, stories
from .test_groups import FP4, IQ4_NL, NF4, in_memory, random_groups

CONFIG = replace(TINY, hidden=128, heads=8, kv_heads=4, intermediate=256)
ASYMMETRIC = Grouping("int4", 128, minimum=True)
Of = Callable[[str, int, int], Matrix]


def of_size_one(rng: np.random.Generator, grouping: Grouping, rows: int, columns: int) -> GroupedMatrix:
    """A matrix whose products are about as large as its input."""
    groups = random_groups(rng, grouping, rows, columns).read(0, rows)
    unit = np.float32(columns**-0.5 / groups.dequantize(grouping).std())
    minimum = None if groups.minimum is None else groups.minimum * unit
    return in_memory(replace(groups, scale=groups.scale * unit, minimum=minimum), grouping)


def gptq(rng: np.random.Generator) -> Of:
    """Four bits, the columns of each linear in an order of its own."""
    orders = {name: rng.permutation(256).astype(np.int32) for name in ("qkv", "o", "gate_up", "down")}

    def matrix(name: str, rows: int, columns: int) -> Matrix:
        shared = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up"}.get(name, name)
        made = of_size_one(rng, Grouping("int4", 64), rows, columns)
        order = orders.get(shared)
        return made if order is None else replace(made, order=order[order < columns])

    return matrix


def fp8(rng: np.random.Generator) -> Of:
    """Eight bits in blocks, the projection of attention with a scale for each row."""

    def matrix(name: str, rows: int, columns: int) -> Matrix:
        return of_size_one(rng, Grouping("fp8", columns if name == "o" else 128), rows, columns)

    return matrix


def mixed(rng: np.random.Generator) -> Of:
    """A format for each matrix: q, k and v are parts of a fused one."""
    groupings = {
        "q": ASYMMETRIC,
        "k": ASYMMETRIC,
        "v": Grouping("code4", 16, levels=FP4),
        "o": Grouping("fp8", 128),
        "gate": Grouping("int4", 16, minimum=True),
        "up": Grouping("int4", 32),
        "down": Grouping("code4", 64, levels=NF4),
        "lm_head": Grouping("code4", 32, levels=IQ4_NL),
    }

    def matrix(name: str, rows: int, columns: int) -> Matrix:
        return of_size_one(rng, groupings[name], rows, columns)

    return matrix


def quantized_model(config: ModelConfig, rng: np.random.Generator, of: Of) -> Weights:
    weights = random_weights(config, rng)
    names = ("q", "k", "v", "o", "gate", "up", "down")
    layers = tuple(
        replace(layer, **{name: of(name, *getattr(layer, name).shape) for name in names}) for layer in weights.layers
    )
    return replace(weights, layers=layers, lm_head=of("lm_head", *weights.lm_head.shape))


@pytest.fixture(params=[gptq, fp8, mixed], ids=lambda made: made.__name__)
def weights(request: pytest.FixtureRequest, rng: np.random.Generator) -> Weights:
    return quantized_model(CONFIG, rng, request.param(rng))


def test_logits_stay_near_those_of_float32(kernels: Kernels, rng: np.random.Generator, weights: Weights) -> None:
    given = stories(rng, [1, 40, 70])
    expected = np.stack([oracle(CONFIG, weights, s.tokens)[-1] for s in given])
    for dtype, bound in (("auto", 0.1), ("bfloat16", 0.03), ("float32", 1e-4)):
        error = np.linalg.norm(create(CONFIG, weights, kernels, dtype=dtype).logits(batch_of(given)) - expected)
        assert error < bound * np.linalg.norm(expected)


def test_probabilities_stay_near_those_of_float32(kernels: Kernels, rng: np.random.Generator, weights: Weights) -> None:
    given = batch_of(stories(rng, [5, 17, 33, 60]))

    def log_probabilities(dtype: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        logits = create(CONFIG, weights, kernels, dtype=dtype).logits(given).astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    exact, got = log_probabilities("float32"), log_probabilities("auto")
    assert (np.exp(exact) * (exact - got)).sum(-1).max() < 5e-3


def test_a_token_does_not_depend_on_its_batch(kernels: Kernels, rng: np.random.Generator, weights: Weights) -> None:
    backend = create(CONFIG, weights, kernels, dtype="auto")
    given = stories(rng, [1, 2, 3, 7, 40, 65, 100])
    together = backend.logits(batch_of(given))
    for i, story in enumerate(given):
        np.testing.assert_array_equal(backend.logits(batch_of([story]))[0], together[i])
        for start in range(0, story.end, 13):
            chunk = backend.logits(batch_of([replace(story, start=start, end=min(start + 13, story.end))]))
        np.testing.assert_array_equal(chunk[0], together[i])


def test_weights_are_as_large_as_foreseen(kernels: Kernels, weights: Weights) -> None:
    """All rows but those of the vocabulary fill their panels."""
    packed = create(CONFIG, weights, kernels, dtype="auto")._packed
    added = -CONFIG.vocab % kernels.info.panel
    assert added
    (lm_head,) = packed_parts((weights.lm_head,), "auto")
    assert packed.size == packed_bytes(weights, "auto") + added * (lm_head.layout.row_bytes(CONFIG.hidden) + 4)
    assert packed.size < 0.7 * packed_bytes(weights, "bf16")


def test_int8_keeps_weights_that_are_quantized(kernels: Kernels, rng: np.random.Generator, weights: Weights) -> None:
    """Only those of floats are rounded to 8 bits."""
    given = batch_of(stories(rng, [5, 17]))
    found = [
        create(CONFIG, weights, kernels, dtype="auto", quantization=name).logits(given) for name in ("int8", "auto")
    ]
    np.testing.assert_array_equal(*found)
    layers = (replace(weights.layers[0], o=random_weights(CONFIG, rng).layers[0].o), *weights.layers[1:])
    mixed_weights = replace(weights, layers=layers)
    backend = create(CONFIG, mixed_weights, kernels, dtype="auto", quantization="int8")
    assert backend._packed.layers[0].output.format == abi.PACKED["int8"]
    expected = create(CONFIG, mixed_weights, kernels, dtype="float32").logits(given)
    assert np.linalg.norm(backend.logits(given) - expected) < 0.1 * np.linalg.norm(expected)


def test_the_plan_counts_the_panels_that_threads_unpack(kernels: Kernels, weights: Weights) -> None:
    backend = create(CONFIG, weights, kernels, dtype="auto", max_batched_tokens=300, max_running=7, threads=3)
    size = measure(weights, CONFIG)
    has_fp8 = weights.layers[0].o.grouping.kind == "fp8"  # type: ignore[union-attr]
    assert size.thread == CONFIG.intermediate * 32 * (4 if weights.layers[0].down.grouping.kind == "fp8" else 2)  # type: ignore[union-attr]
    assert (backend._packed.panel_bytes > 0) == (has_fp8 or kernels.info.quantized_block_bytes == 0)
    assert backend._packed.panel_bytes <= size.thread
    buffers = sum(buffer.nbytes for name, buffer in backend._buffers.items() if name != "kv")
    assert backend.working_bytes == buffers + 3 * backend._packed.panel_bytes


def test_weights_that_become_floats_are_logged_once(
    kernels: Kernels, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = quantized_model(
        CONFIG, rng, lambda _, rows, columns: of_size_one(rng, Grouping("int8", 16), rows, columns)
    )
    logged = warnings_of(decoder_packing, monkeypatch)
    create(CONFIG, weights, kernels, dtype="auto")
    (line,) = logged
    linears = 4 * CONFIG.layers + 1
    first = "q of layer 0 and k of layer 0 and v of layer 0"
    assert line.endswith(f"for them: test (int8) in groups of 16 ({linears} linears, first {first})")
