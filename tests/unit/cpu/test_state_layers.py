"""State layers: Mamba-2, gated delta nets and short convolutions against numpy, alone and beside attention."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from octavo_inference.backends.cpu.footprint import _working
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.packed_formats import packed_bytes
from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.common.errors import ModelError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import GatedDelta, StateLayer
from octavo_inference.models.weights import LayerWeights, Weights

from .state_models import (
    ATTENTION,
    BOTH,
    CONV,
    DELTA,
    MAMBA,
    MLP_ALONE,
    STATE,
    STATE_ALONE,
    oracle,
    random_model,
    state_config,
    states_batch,
)
from .test_decode_loop import PROMPTS, launched, one_by_one, run_of, table_of
from .test_forward import TINY, Float32, Story, create, stories
from .test_quantised import random_blocks

SLOTS = 20
KINDS: dict[str, StateLayer] = {"mamba2": MAMBA, "delta": DELTA, "conv": CONV}


@cache
def ragged(config: ModelConfig, bias: bool) -> tuple[Weights, list[Story], Float32]:
    """Weights, sequences of uneven lengths, and the logits after each: once for all variants of the kernels."""
    rng = np.random.default_rng(0)
    weights = random_model(config, rng, bias=bias)
    given = stories(rng, [1, 2, 5, 16, 33, 100])
    return weights, given, np.stack([oracle(config, weights, s.tokens)[-1] for s in given])


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(
    "state",
    [
        MAMBA,
        replace(MAMBA, groups=1, head_dim=48, state=32, kernel=2),
        replace(MAMBA, heads=3, groups=1, head_dim=64, state=128, norm_groups=3),
        replace(MAMBA, norm_groups=2, norm_first=True),
        replace(MAMBA, norm_groups=0, dt_least=0.1, dt_most=0.5, kernel=8),
        DELTA,
        replace(DELTA, key_heads=3, value_heads=3, key_dim=32, value_dim=16),
        replace(DELTA, key_heads=1, value_heads=2, key_dim=128, value_dim=128, kernel=2),
        CONV,
        replace(CONV, channels=80, kernel=4),
    ],
    ids=str,
)
def test_logits_of_a_ragged_batch(kernels: Kernels, state: StateLayer, bias: bool) -> None:
    config = state_config(state, STATE_ALONE, STATE_ALONE)
    weights, given, expected = ragged(config, bias)
    backend = create(config, weights, kernels, state_slots=SLOTS)
    np.testing.assert_allclose(backend.logits(states_batch(given)), expected, atol=2e-3)


@pytest.mark.parametrize(
    ("state", "parts"),
    [
        (MAMBA, (STATE, ATTENTION, STATE, ATTENTION)),
        (MAMBA, (BOTH, BOTH)),
        (replace(MAMBA, norm_groups=0), (MLP_ALONE, STATE_ALONE, replace(ATTENTION, feed_forward="none"), MLP_ALONE)),
        (DELTA, (STATE, STATE, ATTENTION)),
        (CONV, (STATE, ATTENTION, ATTENTION, STATE)),
    ],
    ids=["granite", "falcon", "nemotron", "qwen", "lfm2"],
)
def test_state_layers_among_others(kernels: Kernels, state: StateLayer, parts: tuple) -> None:  # type: ignore[type-arg]
    # The gate is Qwen3-Next's.
    config = state_config(state, *parts, residual_scale=0.5, attention_gate=isinstance(state, GatedDelta))
    rng = np.random.default_rng(1)
    weights = random_model(config, rng)
    backend = create(config, weights, kernels, state_slots=SLOTS)
    expected = ReferenceBackend(config, weights, num_blocks=24, block_size=32, max_model_len=256, state_slots=SLOTS)
    given = stories(rng, [1, 5, 33, 100])
    for lengths in ((1, 3, 20, 64), (1, 4, 21, 65), (1, 5, 33, 100)):
        step = [replace(s, end=end) for s, end in zip(given, lengths, strict=True) if end > s.start]
        slots = [3 * i for i, (s, end) in enumerate(zip(given, lengths, strict=True)) if end > s.start]
        batch = states_batch(step, slots)
        np.testing.assert_allclose(backend.logits(batch), expected.logits(batch), atol=2e-3)
        given = [replace(s, start=end) for s, end in zip(given, lengths, strict=True)]
    assert len(backend._pools) == config.attention_layers


def in_blocks(config: ModelConfig, rng: np.random.Generator) -> Weights:
    """Weights with state layers in formats of a GGUF file, the last inputs in floats."""

    def quantised(layer: LayerWeights) -> LayerWeights:
        state = layer.state
        if state is None:
            return layer
        first = random_blocks(rng, "q4_1", state.inputs[0].shape[0], config.hidden, scale=0.01)
        output = random_blocks(rng, "q8_0", *state.output.shape, scale=0.0015)
        return replace(layer, state=replace(state, inputs=(first, *state.inputs[1:]), output=output))

    weights = random_model(config, rng)
    return replace(weights, layers=tuple(map(quantised, weights.layers)))


@pytest.mark.parametrize("state", KINDS.values(), ids=KINDS.keys())
def test_inputs_in_several_formats(kernels: Kernels, rng: np.random.Generator, state: StateLayer) -> None:
    config = state_config(state, STATE_ALONE, STATE_ALONE)
    weights = in_blocks(config, rng)
    given = stories(rng, [1, 40, 70])
    expected = np.stack([oracle(config, weights, s.tokens)[-1] for s in given])
    kept = create(config, weights, kernels, dtype="auto", state_slots=SLOTS)
    as_floats = create(config, weights, kernels, dtype="bfloat16", state_slots=SLOTS)
    for backend, bound in ((kept, 0.2), (as_floats, 0.03)):
        error = np.linalg.norm(backend.logits(states_batch(given)) - expected) / np.linalg.norm(expected)
        assert error < bound
    assert kept._packed.layers[0].state.inputs.part_count == 2
    assert packed_bytes(weights, "auto") <= kept._packed.size <= packed_bytes(weights, "auto") * 1.2


MIXES = {
    "mamba2": state_config(MAMBA, STATE, ATTENTION, STATE_ALONE),
    "mamba2 beside attention": state_config(replace(MAMBA, head_dim=48, norm_groups=0), BOTH),
    "delta": state_config(DELTA, STATE, ATTENTION, STATE_ALONE, attention_gate=True),
    "conv": state_config(CONV, STATE, ATTENTION, STATE_ALONE),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "auto"])
@pytest.mark.parametrize("config", MIXES.values(), ids=MIXES.keys())
def test_a_token_does_not_depend_on_its_batch_or_chunks(
    kernels: Kernels, rng: np.random.Generator, config: ModelConfig, dtype: str
) -> None:
    weights = in_blocks(config, rng) if dtype == "auto" else random_model(config, rng)
    backend = create(config, weights, kernels, dtype=dtype, state_slots=SLOTS)
    given = stories(rng, [1, 2, 3, 4, 17, 40, 65, 100])
    together = backend.logits(states_batch(given, [5, 3, 9, 0, 1, 8, 2, 7]))
    for i, story in enumerate(given):
        alone = backend.logits(states_batch([story], [i]))
        np.testing.assert_array_equal(alone[0], together[i])
        for length in (1, 3, 13):
            for start in range(0, story.end, length):
                chunk = backend.logits(
                    states_batch([replace(story, start=start, end=min(start + length, story.end))], [11])
                )
            np.testing.assert_array_equal(chunk[0], together[i])


@pytest.mark.parametrize("state", KINDS.values(), ids=KINDS.keys())
def test_a_state_begins_with_zeros_whatever_its_slot_has(
    kernels: Kernels, rng: np.random.Generator, state: StateLayer
) -> None:
    config = state_config(state, STATE, ATTENTION, STATE)
    backend = create(config, random_model(config, rng), kernels, state_slots=SLOTS)
    given = stories(rng, [2, 40])
    expected = backend.logits(states_batch(given))
    backend._states[:] = np.nan
    np.testing.assert_array_equal(backend.logits(states_batch(given)), expected)


@pytest.mark.parametrize("state", KINDS.values(), ids=KINDS.keys())
def test_copied_states_continue_like_their_source(
    kernels: Kernels, rng: np.random.Generator, state: StateLayer
) -> None:
    config = state_config(state, STATE, STATE_ALONE)
    backend = create(config, random_model(config, rng), kernels, state_slots=SLOTS)
    assert backend.state_slots == SLOTS
    assert backend._states.nbytes == backend.kv_bytes == 2 * SLOTS * 4 * state.shape.elements
    story = stories(rng, [41])[0]
    backend.logits(states_batch([replace(story, end=40)], [3]))
    backend.copy_states([(3, 0), (3, 19)])
    backend.states_from_host(backend.states_to_host([7, 3]), [5, 6])
    last = replace(story, start=40)
    found = [backend.logits(states_batch([last], [slot]))[0] for slot in (3, 0, 19, 6)]
    for logits in found[1:]:
        np.testing.assert_array_equal(logits, found[0])
    assert not np.array_equal(backend.logits(states_batch([last], [5]))[0], found[0])


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (replace(MAMBA, head_dim=24), "Mamba-2 head size is 24"),
        (replace(MAMBA, state=8), "Mamba-2 state size is 8"),
        (replace(MAMBA, norm_groups=16), "Mamba-2 norm group size is 8"),
        (replace(MAMBA, groups=3), "4 heads of state layers cannot share 3 groups"),
        (replace(MAMBA, kernel=9), "over 9 tokens"),
        (replace(DELTA, key_dim=24), "gated delta key size is 24"),
        (replace(DELTA, value_heads=5), "5 value heads cannot share 2 key heads"),
        (replace(CONV, channels=72), "short convolution size is 72"),
    ],
)
def test_sizes_the_kernels_cannot_run_are_refused(
    kernels: Kernels, rng: np.random.Generator, state: StateLayer, message: str
) -> None:
    weights = random_model(TINY, rng)
    with pytest.raises(ModelError, match=message):
        create(state_config(state, STATE), weights, kernels)


@pytest.mark.parametrize("state", KINDS.values(), ids=KINDS.keys())
def test_a_run_of_decodes_gives_the_tokens_of_single_steps(
    kernels: Kernels, rng: np.random.Generator, state: StateLayer
) -> None:
    config = state_config(state, STATE, ATTENTION, STATE_ALONE)
    backend = create(config, random_model(config, rng), kernels, state_slots=SLOTS)
    table = table_of(temperature=2.0)
    prompts = [
        Story(table.tokens[row].tolist(), table.blocks[row, 0].tolist(), 0, length - 1)
        for row, length in enumerate(PROMPTS)
    ]
    backend.logits(states_batch(prompts))
    before = backend.states_to_host([0, 1, 2])
    found = launched(backend, table, PROMPTS, run_of())
    after = backend.states_to_host([0, 1, 2])
    backend.states_from_host(before, [0, 1, 2])
    np.testing.assert_array_equal(found, one_by_one(backend, table))
    np.testing.assert_array_equal(backend.states_to_host([0, 1, 2]), after)


@pytest.mark.parametrize("config", MIXES.values(), ids=MIXES.keys())
def test_the_plan_counts_all_buffers(kernels: Kernels, rng: np.random.Generator, config: ModelConfig) -> None:
    config = replace(config, vocab=16_000)
    weights = random_model(config, rng)
    sizes = {"max_batched_tokens": 300, "max_running": 7, "threads": 3, "state_slots": SLOTS}
    backend = create(config, weights, kernels, **sizes)
    token, row = _working(config)
    assert backend.working_bytes <= token * 300 + row * (7 + 3)
    assert backend.kv_bytes == sum(pool.nbytes for pool in backend._pools) + backend._states.nbytes
