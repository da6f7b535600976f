"""Adapters in the native step and in the reference: equal to merged weights, alone and in mixed batches."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.adapters import ALL, merged, random_adapter, with_added, with_rows

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.sampling import native_sampling
from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.common.errors import ModelError, SettingsError
from octavo_inference.core.gather import Batch
from octavo_inference.models.adapter import Adapter
from octavo_inference.models.added_ids import with_added_ids
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.weights import Matrix, Weights

from .decoders import random_weights
from .mixtures import random_mixture, with_experts
from .test_decoder_flags import FAMILIES, PRUNED
from .test_experts import CASES
from .test_forward import TINY, Float32, Story, batch_of, create, stories
from .test_grouped_models import CONFIG as QUANTIZED
from .test_grouped_models import Of, gptq, mixed, quantized_model

NO_ADAPTER = -1
BASE = replace(TINY, layers=3, max_positions=256)
FLAGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "biases": {"qkv_bias": True, "output_bias": True, "mlp_bias": True, "head_bias": True},
    "seven heads": {"heads": 7, "kv_heads": 1},
    "scaled embeddings": {"embedding_scale": 8.0, "logit_softcap": 20.0},
    "output norms": {"output_norms": True},
    "layers of unlike sizes": {"parts": PRUNED},
    **{name: flags for name, flags in FAMILIES.items() if name in {"gpt-2", "gpt-neox", "bloom"}},
}


def with_slots(batch: Batch, slots: list[int]) -> Batch:
    counts = batch.query_start[1:] - batch.query_start[:-1]
    return replace(batch, adapter=np.repeat(np.array(slots, np.int32), counts))


def model_of(name: str) -> tuple[ModelConfig, Weights]:
    flags = dict(FLAGS[name])
    options = {key: flags.pop(key) for key in ("norm_biases", "norms_by_head", "token_types") if key in flags}
    config = replace(BASE, **flags)
    return config, random_weights(config, np.random.default_rng(7), **options)


def expected(
    config: ModelConfig, weights: Weights, adapters: list[Adapter], told: list[Story], slots: list[int]
) -> Float32:
    """Each sequence's logits by weights with its adapter merged into them."""
    each = [weights if slot < 0 else merged(weights, adapters[slot]) for slot in slots]
    found = []
    for own, story in zip(each, told, strict=True):
        backend = ReferenceBackend(config, own, num_blocks=24, block_size=32, max_model_len=256)
        found.append(backend.logits(batch_of([story]))[0])
    return np.stack(found)


def close(found: Float32, wanted: Float32) -> None:
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max(), rtol=0)


@pytest.mark.parametrize("name", FLAGS)
def test_a_mixed_batch_equals_merged_weights(kernels: Kernels, name: str) -> None:
    config, weights = model_of(name)
    rng = np.random.default_rng(1)
    adapters = [
        random_adapter(weights, rng, rank, fields, outer=outer)
        for rank, fields, outer in ((4, ALL, False), (37, ("q", "v", "down"), True), (64, ALL, True))
    ]
    native = create(config, weights, kernels, adapter_slots=3, max_adapter_rank=64)
    reference = ReferenceBackend(config, weights, num_blocks=24, block_size=32, max_model_len=256, adapter_slots=3)
    for slot, adapter in enumerate(adapters):
        native.load_adapter(slot, native.prepare_adapter(adapter))
        reference.load_adapter(slot, reference.prepare_adapter(adapter))
    told = stories(rng, [1, 70, 5, 33, 1, 40])
    told = [replace_tokens(story, config.vocab) for story in told]
    slots = [2, 1, NO_ADAPTER, 0, 0, 2]
    wanted = expected(config, weights, adapters, told, slots)
    batch = with_slots(batch_of(told), slots)
    close(reference.logits(batch), wanted)
    close(native.logits(batch), wanted)
    close(native.logits(batch_of(told)), expected(config, weights, adapters, told, [NO_ADAPTER] * 6))


@pytest.mark.parametrize("name", FLAGS)
def test_rows_of_tokens_take_the_place_of_the_models(kernels: Kernels, name: str) -> None:
    """Of tokens that all sequences have, beside low-rank changes of the same matrices and without."""
    config, weights = model_of(name)
    rng = np.random.default_rng(11)
    every = list(range(config.vocab))
    adapters = [
        with_rows(random_adapter(weights, rng, 4, ALL, outer=True), weights, rng, every[::3], every[1::2]),
        with_rows(Adapter("", ({},) * config.layers), weights, rng, every[:7], []),
        with_rows(Adapter("", ({},) * config.layers), weights, rng, [], [0, config.vocab - 1]),
    ]
    native = create(config, weights, kernels, adapter_slots=3, max_adapter_rank=8)
    reference = ReferenceBackend(config, weights, num_blocks=24, block_size=32, max_model_len=256, adapter_slots=3)
    told = [replace_tokens(story, config.vocab) for story in stories(rng, [1, 70, 5, 33, 1, 40])]
    slots = [2, 1, NO_ADAPTER, 0, 0, 2]
    wanted = expected(config, weights, adapters, told, slots)
    batch = with_slots(batch_of(told), slots)
    for backend in (reference, native):
        for slot, adapter in enumerate(adapters):
            backend.load_adapter(slot, backend.prepare_adapter(adapter))
        close(backend.logits(batch), wanted)
    assert native.step(batch).tokens.tolist() == wanted.argmax(1).tolist()
    native.load_adapter(0, native.prepare_adapter(Adapter("", ({},) * config.layers)))
    close(native.logits(with_slots(batch_of(told[:1]), [0])), expected(config, weights, [], told[:1], [NO_ADAPTER]))


@pytest.mark.parametrize("name", [name for name in FLAGS if "logit_softcap" not in FLAGS[name]])
@pytest.mark.parametrize("quantization", ["auto", "int8"])
def test_tokens_that_adapters_add(kernels: Kernels, name: str, quantization: Any) -> None:
    """Each adapter chooses those of its own, and the model none; steps that choose the best only, and logits."""
    config, weights = with_added_ids(*model_of(name), 7)
    rng = np.random.default_rng(12)
    own = config.own_vocab
    bare = Adapter("", ({},) * config.layers)
    adapters = [
        with_added(random_adapter(weights, rng, 4, ALL, outer=True), weights, rng, [*range(own, own + 7)]),
        with_added(bare, weights, rng, [own, own + 1]),
        with_rows(bare, weights, rng, [1], [3]),
    ]
    kind = {"dtype": "float32" if quantization == "auto" else "auto", "quantization": quantization}
    native = create(config, weights, kernels, adapter_slots=3, max_adapter_rank=8, **kind)
    reference = ReferenceBackend(config, weights, num_blocks=24, block_size=32, max_model_len=256, adapter_slots=3)
    told = [replace_tokens(story, config.vocab) for story in stories(rng, [1, 70, 5, 33, 1, 40])]
    slots = [2, 1, NO_ADAPTER, 0, 0, 2]
    there = np.array([[own + at < own + {0: 7, 1: 2}.get(slot, 0) for at in range(7)] for slot in slots])
    wanted = expected(config, weights, adapters, told, slots)
    assert (np.isfinite(wanted[:, own:]) == there).all()
    for backend in (reference, native):
        for slot, adapter in enumerate(adapters):
            backend.load_adapter(slot, backend.prepare_adapter(adapter))
    batch = with_slots(batch_of(told), slots)
    found = reference.logits(batch)
    assert (np.isfinite(found) == np.isfinite(wanted)).all()
    close(np.where(np.isfinite(found), found, 0), np.where(np.isfinite(wanted), wanted, 0))
    found = native.logits(batch)
    assert (np.isfinite(found[:, own:]) == there).all()
    assert native.step(batch).tokens.tolist() == found.argmax(1).tolist()
    if quantization == "auto":
        close(np.where(np.isfinite(found), found, 0), np.where(np.isfinite(wanted), wanted, 0))
    alone = batch_of(told)
    assert native.step(alone).tokens.tolist() == native.logits(alone)[:, :own].argmax(1).tolist()


def test_a_model_that_bounds_its_logits_takes_no_more_tokens() -> None:
    with pytest.raises(SettingsError, match="max_added_tokens 3: this model bounds its logits"):
        with_added_ids(*model_of("scaled embeddings"), 3)


def replace_tokens(story: Story, vocab: int) -> Story:
    return Story([token % vocab for token in story.tokens], story.blocks, story.start, story.end)


def test_a_run_of_rows_in_several_blocks(kernels: Kernels) -> None:
    """Rows as long as these are not multiplied in one block by all kernels."""
    config = replace(BASE, layers=1, hidden=2752, heads=2, kv_heads=2, head_dim=16, intermediate=32, vocab=64)
    rng = np.random.default_rng(8)
    weights = random_weights(config, rng)
    adapter = random_adapter(weights, rng, 4, ("q", "v", "gate"))
    native = create(config, weights, kernels, adapter_slots=1, max_adapter_rank=4)
    native.load_adapter(0, native.prepare_adapter(adapter))
    told = [replace_tokens(story, config.vocab) for story in stories(rng, [32, 7])]
    close(native.logits(with_slots(batch_of(told), [0, 0])), expected(config, weights, [adapter], told, [0, 0]))


def test_biases_are_added(kernels: Kernels) -> None:
    config, weights = model_of("biases")
    rng = np.random.default_rng(2)
    adapter = random_adapter(weights, rng, 8, bias=True)
    native = create(config, weights, kernels, adapter_slots=1, max_adapter_rank=8)
    reference = ReferenceBackend(config, weights, num_blocks=24, block_size=32, max_model_len=256, adapter_slots=1)
    told = stories(rng, [9, 2])
    wanted = expected(config, weights, [adapter], told, [0, NO_ADAPTER])
    for backend in (native, reference):
        backend.load_adapter(0, backend.prepare_adapter(adapter))
        close(backend.logits(with_slots(batch_of(told), [0, NO_ADAPTER])), wanted)


def test_a_row_has_the_same_bits_in_any_company(kernels: Kernels) -> None:
    config, weights = model_of("llama")
    rng = np.random.default_rng(3)
    adapters = [random_adapter(weights, rng, 16, outer=True) for _ in range(8)]
    native = create(config, weights, kernels, adapter_slots=8, max_adapter_rank=16)
    for slot, adapter in enumerate(adapters):
        native.load_adapter(slot, native.prepare_adapter(adapter))
    told = stories(rng, [3, 40, 1, 17, 8, 2, 1, 1])
    slots = [0, 3, 3, NO_ADAPTER, 7, 1, 0, 0]
    together = native.logits(with_slots(batch_of(told), slots))
    for row, (story, slot) in enumerate(zip(told, slots, strict=True)):
        alone = native.logits(with_slots(batch_of([story]), [slot]))
        np.testing.assert_allclose(alone[0], together[row], atol=1e-5 * np.abs(together).max(), rtol=0)


@pytest.mark.parametrize("own_rows", [False, True])
def test_greedy_tokens_and_log_probabilities_have_the_adapter(kernels: Kernels, own_rows: bool) -> None:
    config, weights = model_of("llama")
    rng = np.random.default_rng(4)
    adapter = random_adapter(weights, rng, 16, outer=True)
    if own_rows:  # of the most likely token, and of others
        adapter = with_rows(adapter, weights, rng, range(0, config.vocab, 2), range(config.vocab))
    native = create(config, weights, kernels, adapter_slots=1, max_adapter_rank=16)
    native.load_adapter(0, native.prepare_adapter(adapter))
    told = stories(rng, [12, 7])
    batch = with_slots(batch_of(told), [0, NO_ADAPTER])
    logits = expected(config, weights, [adapter], told, [0, NO_ADAPTER])
    assert native.step(batch).tokens.tolist() == logits.argmax(1).tolist()
    scored = replace(batch, sample=replace(batch.sample, logprobs=np.full(2, 3, np.int32)))
    result = native.step(scored)
    normed = (
        logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True)) - logits.max(1)[:, None]
    )
    np.testing.assert_allclose(result.logprob, normed.max(1), atol=1e-3)


@pytest.mark.parametrize("own_rows", [False, True])
def test_an_emptied_slot_frees_its_adapter_and_changes_nothing(kernels: Kernels, own_rows: bool) -> None:
    config, weights = model_of("llama")
    rng = np.random.default_rng(6)
    adapter = random_adapter(weights, rng, 8, outer=True, bias=True)
    if own_rows:
        adapter = with_rows(adapter, weights, rng, range(config.vocab), range(config.vocab))
    told = stories(rng, [9, 2])
    batch = with_slots(batch_of(told), [0, 0])
    native = create(config, weights, kernels, adapter_slots=2, max_adapter_rank=8)
    wanted = expected(config, weights, [], told, [NO_ADAPTER] * 2)
    prepared = native.prepare_adapter(adapter)
    memory = [weakref.ref(array) for array in prepared.keep if isinstance(array, np.ndarray)]
    native.load_adapter(0, prepared)
    assert np.abs(native.logits(batch) - wanted).max() > 0.1
    native.load_adapter(0, None)
    del prepared, adapter
    gc.collect()
    assert memory
    assert not any(array() is not None for array in memory)
    close(native.logits(batch), wanted)


def test_a_step_that_waits_for_its_masks_may_lose_its_adapter(kernels: Kernels) -> None:
    """Its result is dropped; other rows have theirs."""
    config, weights = model_of("llama")
    rng = np.random.default_rng(6)
    adapter = random_adapter(weights, rng, 8, outer=True)
    native = create(config, weights, kernels, adapter_slots=2, max_adapter_rank=8)
    for slot in (0, 1):
        native.load_adapter(slot, native.prepare_adapter(adapter))
    told = stories(rng, [9, 2])
    batch = with_slots(batch_of(told), [0, 1])
    logits = expected(config, weights, [adapter] * 2, told, [0, 1])
    sampling = native_sampling(batch.sample, config.vocab, adapter=batch.adapter)
    native._run(batch, abi.SamplingArgs(count=0), choose=False)
    native.load_adapter(0, None)
    gc.collect()
    assert native._choose(batch, sampling).tokens[1] == logits[1].argmax()


def test_changes_that_no_kernel_makes_are_refused(kernels: Kernels) -> None:
    config, weights = model_of("llama")
    native = create(config, weights, kernels, adapter_slots=1, max_adapter_rank=8)
    adapter = random_adapter(weights, np.random.default_rng(0), 2)
    strange = replace(adapter, layers=({"experts.router": adapter.layers[0]["q"]}, *adapter.layers[1:]))
    with pytest.raises(ModelError, match=r"changes experts\.router of layer 0, which this backend cannot do"):
        native.prepare_adapter(strange)


EXPERTS = (
    "experts.gate",
    "experts.up",
    "experts.down",
    "experts.shared_gate",
    "experts.shared_up",
    "experts.shared_down",
)


@pytest.mark.parametrize("name", CASES)
def test_experts_are_changed(kernels: Kernels, name: str) -> None:
    experts, dense, changes, options = CASES[name]
    config = with_experts(experts, dense, **changes)
    rng = np.random.default_rng(5)
    weights = random_mixture(config, rng, **options)
    adapters = [
        random_adapter(weights, rng, rank, fields) for rank, fields in ((4, EXPERTS), (17, ("q", *EXPERTS[1:3])))
    ]
    native = create(config, weights, kernels, adapter_slots=2, max_adapter_rank=32)
    reference = ReferenceBackend(config, weights, num_blocks=24, block_size=32, max_model_len=256, adapter_slots=2)
    told = [replace_tokens(story, config.vocab) for story in stories(rng, [1, 33, 5, 1])]
    slots = [1, 0, NO_ADAPTER, 0]
    wanted = expected(config, weights, adapters, told, slots)
    for backend in (reference, native):
        for slot, adapter in enumerate(adapters):
            backend.load_adapter(slot, backend.prepare_adapter(adapter))
        close(backend.logits(with_slots(batch_of(told), slots)), wanted)
        close(backend.logits(with_slots(batch_of(told[:1]), slots[:1])), wanted[:1])


def ordered_head(rng: np.random.Generator) -> Of:
    """GPTQ with a head whose columns have an order, too."""
    of, order = gptq(rng), rng.permutation(QUANTIZED.hidden).astype(np.int32)

    def matrix(name: str, rows: int, columns: int) -> Matrix:
        made = of(name, rows, columns)
        return replace(made, order=order) if name == "lm_head" and isinstance(made, GroupedMatrix) else made

    return matrix


@pytest.mark.parametrize("of", [gptq, ordered_head, mixed], ids=lambda made: made.__name__)
def test_quantized_weights_are_changed(kernels: Kernels, of: Callable[[np.random.Generator], Of]) -> None:
    rng = np.random.default_rng(6)
    config = replace(QUANTIZED, max_positions=256)
    weights = quantized_model(config, rng, of(rng))
    adapters = [random_adapter(weights, rng, 16, outer=True), random_adapter(weights, rng, 5, ("q", "down"))]
    adapters[0] = with_rows(adapters[0], weights, rng, range(0, config.vocab, 2), range(1, config.vocab, 3))
    told = [replace_tokens(story, config.vocab) for story in stories(rng, [1, 40, 70])]
    slots = [0, 1, 0]
    wanted = expected(config, weights, adapters, told, slots)
    for dtype, bound in (("auto", 0.1), ("bfloat16", 0.03), ("float32", 1e-4)):
        native = create(config, weights, kernels, adapter_slots=2, max_adapter_rank=16, dtype=dtype)
        for slot, adapter in enumerate(adapters):
            native.load_adapter(slot, native.prepare_adapter(adapter))
        error = np.linalg.norm(native.logits(with_slots(batch_of(told), slots)) - wanted)
        assert error < bound * np.linalg.norm(wanted)
