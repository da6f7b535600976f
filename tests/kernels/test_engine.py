"""The whole engine on the CUDA backend, its kernels interpreted: token for token what the reference gives."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from octavo_inference.backends.cuda.backend import CudaBackend, check, independent
from octavo_inference.backends.cuda.buffers import StepLimits, buffer_shapes, changes_size, table_places
from octavo_inference.backends.cuda.device import Device, find_device
from octavo_inference.backends.cuda.rows import DeviceRows, _together
from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.common.errors import SettingsError
from octavo_inference.core.backend import Backend
from octavo_inference.core.gather import gather
from octavo_inference.core.logit_rules import bitmask
from octavo_inference.core.model_input import Penalty, RowChange, RowSamples, RowStep, RowTable
from octavo_inference.core.request import Guidance, Output, TokenLogprobs
from octavo_inference.core.sequence import Sequence
from octavo_inference.core.speculation.lookup import Guess
from octavo_inference.core.speculation.speculator import Speculator
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layer_groups import pool_layout
from octavo_inference.models.weights import Tensor, Weights

from ..unit.engine.echo import CONFIG, Runner, make_runner, tiny_model  # noqa: TID252 -- tests are no package
from ..unit.engine.fake_grammar import FakeMatcher, grammar  # noqa: TID252 -- as above
from ..unit.engine.test_speculation import Remembered  # noqa: TID252 -- as above

Model = tuple[ModelConfig, Weights]
BLOCK, LONGEST = 8, 32
PROMPTS = [np.random.default_rng(i).integers(0, 60, size).tolist() for i, size in enumerate((3, 13, 18))]


def cuda(model: Model, blocks: int = 32, **given: Any) -> CudaBackend:
    return CudaBackend.create(
        *model,
        device=find_device(),
        num_blocks=blocks,
        block_size=BLOCK,
        max_batched_tokens=128,
        max_running=32,
        max_model_len=LONGEST,
        dtype=torch.float32,
        **given,
    )


def reference(model: Model, blocks: int = 32) -> ReferenceBackend:
    return ReferenceBackend(*model, num_blocks=blocks, block_size=BLOCK, max_model_len=LONGEST)


def with_everything() -> Model:
    """The model with biases, windows, norms and caps in all places that have one."""
    config, weights = tiny_model()
    rng = np.random.default_rng(2)

    def vector(size: int, around: float) -> Tensor:
        return Tensor("f32", (size,), (around + 0.3 * rng.standard_normal(size)).astype(np.float32))

    names = ("q", "k", "v", "o", "gate", "up", "down")
    layers = tuple(
        replace(
            layer,
            **{f"{name}_bias": vector(getattr(layer, name).shape[0], 0.0) for name in names},
            q_norm=vector(config.head_dim, 1.0),
            k_norm=vector(config.head_dim, 1.0),
            attention_output_norm=vector(config.hidden, 1.0),
            mlp_output_norm=vector(config.hidden, 1.0),
        )
        for layer in weights.layers
    )
    config = replace(
        config,
        windows=(5, None),
        local_rope_theta=100.0,
        rotary_dim=4,
        attention_softcap=4.0,
        logit_softcap=6.0,
        logit_scale=0.9,
        embedding_scale=1.5,
        residual_scale=0.8,
        activation="gelu_tanh",
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        qk_norm="head",
        output_norms=True,
    )
    return config, replace(weights, layers=layers)


MODELS: dict[str, Callable[[], Model]] = {"plain": tiny_model, "with everything": with_everything}
NO_CACHE = {"caching": False}


def run(backend: Backend, **limits: Any) -> Runner:
    """All prompts together: half greedy, half sampled, one with two answers and log-probabilities."""
    runner = make_runner(backend, max_model_len=LONGEST, **({"budget": 40, "max_running": 8} | limits))
    for i, prompt in enumerate(PROMPTS):
        runner.submit(str(i), prompt, temperature=i % 2, seed=i, max_tokens=5, ignore_eos=True)
    runner.submit("two", PROMPTS[1], temperature=1.0, top_p=0.9, seed=9, n=2, max_tokens=5, ignore_eos=True)
    runner.finish()
    return runner


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[tuple[str, int], list[int]]]:
    return {name: run(reference(make()), **NO_CACHE).tokens for name, make in MODELS.items()}


class RightThenWrong(Remembered):
    """Guesses the next token of an earlier run, and another one than follows it."""

    def guess_of(self, sequence: Sequence, most: int) -> Guess:
        done = sequence.num_known_tokens - sequence.prompt_len
        token, *following = self.answers[sequence.request.id, sequence.index][done : done + 2]
        return Guess(np.array([token, *((each + 1) % 60 for each in following)][:most], np.int32), 9)


def test_guesses_that_are_verified_change_no_answer(expected: dict[str, dict[tuple[str, int], list[int]]]) -> None:
    """Drafts are chunks that sample at each token; the device's row table gets guesses and samples."""
    answers = expected["plain"]
    speculator = Speculator(RightThenWrong(answers, random.Random(1)), 4, adjusted=False)
    runner = run(cuda(MODELS["plain"]()), speculator=speculator, **NO_CACHE)
    assert runner.tokens == answers
    assert 0 < speculator.totals.accepted < speculator.totals.drafted
    assert speculator.totals.by_position[1] == 0


@pytest.mark.parametrize(
    ("name", "blocks", "limits"),
    [
        ("plain", 32, NO_CACHE),
        ("with everything", 32, NO_CACHE),
        ("with everything", 32, {"caching": False, "budget": 7, "max_running": 3}),
        ("plain", 4, {}),
        ("with everything", 8, {"host_blocks": 20}),
    ],
    ids=["company", "company, with everything", "chunks", "preemption by recompute", "preemption by swap"],
)
def test_the_engine_gives_the_tokens_of_the_reference(
    expected: dict[str, dict[tuple[str, int], list[int]]], name: str, blocks: int, limits: dict[str, Any]
) -> None:
    runner = run(cuda(MODELS[name](), blocks), **limits)
    assert runner.tokens == expected[name]
    scheduler = runner.engine.scheduler
    assert (scheduler.preemptions > 0) == (blocks < 32)
    assert (scheduler.swaps > 0) == ("host_blocks" in limits)


def test_prefix_hits_change_no_token(expected: dict[str, dict[tuple[str, int], list[int]]]) -> None:
    runner = run(cuda(with_everything()))
    runner.submit("again", PROMPTS[2], temperature=0, seed=2, max_tokens=5, ignore_eos=True)
    runner.finish()
    assert runner.engine.scheduler.hit_tokens > 0
    assert runner.tokens["again", 0] == runner.tokens["2", 0] == expected["with everything"]["2", 0]


@pytest.mark.parametrize("limits", [{}, {"budget": 5, "max_running": 3}], ids=["company", "chunks"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
def test_embeddings_are_those_of_the_reference(model: Model, pooling: str, limits: dict[str, Any]) -> None:
    found, wanted = (embedded(make(model), pooling, **limits) for make in (cuda, reference))
    for name in ("e0", "e1", "e2"):
        assert (
            np.abs(found.embedding(name) - wanted.embedding(name)).max() < 2e-5 * np.abs(wanted.embedding(name)).max()
        )
    assert found.tokens == wanted.tokens


def embedded(backend: Backend, pooling: str, **limits: Any) -> Runner:
    """An embedding of each prompt, beside answers to two of them."""
    runner = make_runner(backend, max_model_len=LONGEST, **({"budget": 40, "max_running": 8} | limits))
    for i, tokens in enumerate(PROMPTS):
        runner.submit(f"e{i}", tokens, pooling=pooling)
        if i:
            runner.submit(str(i), tokens, temperature=0, max_tokens=5, ignore_eos=True)
    runner.finish()
    return runner


def with_rules(backend: Backend, **limits: Any) -> tuple[Runner, list[Output]]:
    """Rows with every kind of rule beside rows without any, prompts with log-probabilities, an answer cut short."""
    runner = make_runner(backend, max_model_len=LONGEST, **({"budget": 40, "max_running": 8} | limits))
    given: list[dict[str, Any]] = [
        {"logit_bias": {3: 6.0, 9: -40.0}, "logprobs": 2, "prompt_logprobs": 1},
        {"allowed_token_ids": range(0, 60, 4), "frequency_penalty": 1.5, "prompt_logprobs": 0},
        {"bad_words": [[a, b] for a in range(11) for b in range(11)], "logprob_token_ids": [4, 0]},
        {
            "temperature": 0.9,
            "allowed_token_ids": range(20),
            "bad_words": [[1], [2, 3]],
            "logit_bias": {2: 2.0},
            "n": 2,
        },
        {"prompt_logprobs": 3},
        {"allowed_token_ids": [8], "bad_words": [[8, 8, 8]], "logprobs": 0},
    ]
    for i, one in enumerate(given):
        runner.submit(str(i), PROMPTS[i % 3], **{"seed": i, "max_tokens": 6, "ignore_eos": True, **one})
    outputs = []
    while runner.engine.has_work:
        outputs += runner.step()
    return runner, outputs


@pytest.mark.parametrize(
    ("blocks", "limits"),
    [(32, {}), (32, {"budget": 7, "max_running": 3}), (6, {"host_blocks": 20})],
    ids=["company", "chunks", "preemption"],
)
def test_rules_and_prompt_log_probabilities_are_those_of_the_reference(blocks: int, limits: dict[str, Any]) -> None:
    runner, outputs = with_rules(cuda(tiny_model(), blocks), **limits)
    expected, ruled = with_rules(reference(tiny_model()), caching=False)
    assert runner.tokens == expected.tokens
    assert {key: final.finish_reason for key, final in runner.final.items()} == {
        key: final.finish_reason for key, final in expected.final.items()
    }
    for field in ("logprobs", "prompt_logprobs"):
        for key in runner.tokens:
            found, wanted = (reported(each, key, field) for each in (outputs, ruled))
            assert [(e.rank, e.top_ids) for e in found] == [(e.rank, e.top_ids) for e in wanted]
            for mine, other in zip(found, wanted, strict=True):
                np.testing.assert_allclose(
                    [mine.logprob, *mine.top_logprobs], [other.logprob, *other.top_logprobs], atol=2e-5
                )


def reported(outputs: list[Output], key: tuple[str, int], field: str) -> list[TokenLogprobs]:
    entries = [getattr(output, field) or [] for output in outputs if (output.id, output.index) == key]
    return [entry for part in entries for entry in part if entry is not None]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    return MODELS[request.param]()


def test_logits_are_those_of_the_reference(model: Model, record: Callable[..., None]) -> None:
    tokens = np.random.default_rng(1).integers(0, 60, 30).astype(np.int32)
    step = prompt(tokens, [3, 1, 4, 0], len(pool_layout(model[0]).groups))
    found, wanted = cuda(model).logits(step), reference(model).logits(gather(step))
    error = float(np.abs(found - wanted).max())
    record("engine: logits", "4/2 heads of 8, 2 layers", "float32", error)
    # Sums of a few dozen float32 products in another order.
    assert error < 2e-5 * float(np.abs(wanted).max())


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_eight_bit_keys_and_values_are_close(model: Model, kv_dtype: str, record: Callable[..., None]) -> None:
    tokens = np.random.default_rng(1).integers(0, 60, 30).astype(np.int32)
    step = prompt(tokens, [3, 1, 4, 0], len(pool_layout(model[0]).groups))
    found, wanted = cuda(model, kv_dtype=kv_dtype).logits(step), reference(model).logits(gather(step))
    divergence = kl(wanted, found)
    record(f"engine: KL of logits, {kv_dtype} KV", "4/2 heads of 8, 2 layers", "float32", divergence)
    assert 0 < divergence < (0.05 if kv_dtype == "fp8" else 0.005)


def test_swapped_blocks_come_back_as_they_were() -> None:
    backend = cuda(tiny_model(), kv_dtype="int8")
    tokens = np.random.default_rng(1).integers(0, 60, 30).astype(np.int32)
    backend.logits(prompt(tokens, [3, 1, 4, 0]))
    saved = backend.to_host([3, 1, 4, 0])
    backend.from_host(np.zeros_like(saved), [3, 1, 4, 0])
    assert not backend.to_host([3, 1, 4, 0]).any()
    backend.from_host(saved, [17, 18, 19, 20])
    backend.copy_blocks([(17, 10), (20, 12)])
    assert np.array_equal(backend.to_host([10, 18, 19, 12]), saved)


def test_copies_that_touch_the_same_block_run_one_after_the_other() -> None:
    assert list(independent([(0, 1), (0, 2), (3, 0), (0, 4), (5, 4)])) == [
        [(0, 1), (0, 2)],
        [(3, 0)],
        [(0, 4)],
        [(5, 4)],
    ]
    assert list(independent([])) == []


def test_a_card_without_fp8_is_told_to_keep_int8() -> None:
    card = Device(torch.device("cuda"), "NVIDIA A100", (8, 0), 108, 0, 0)
    with pytest.raises(SettingsError, match=r"needs a card of compute capability 8.9 .* A100 has 8.0: use int8"):
        check(CONFIG, card, "fp8")
    check(CONFIG, card, "int8")


def prompt(tokens: np.ndarray, blocks: list[int], groups: int = 1) -> RowStep:
    """All of one sequence, logits of each token. Each group of layers has these blocks, five further on."""
    count = len(tokens)
    table = RowTable.zeros(1, LONGEST, BLOCK, CONFIG.vocab, groups=groups)
    table.tokens[0, :count] = tokens
    for group in range(groups):
        table.blocks[0, group, : len(blocks)] = np.array(blocks) + 5 * group
    changes = [RowChange("tokens", 0, 0, table.tokens[0]), RowChange("blocks", 0, 0, table.blocks[0].reshape(-1))]
    at, own = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
    samples = RowSamples(query=at, row=own, position=at + 1, logprobs=own - 1, penalties=[None] * count)
    return RowStep(changes, own[:1], np.array([0, count], np.int32), np.array([count], np.int32), samples, table)


def kl(wanted: np.ndarray, found: np.ndarray) -> float:
    """Mean Kullback-Leibler divergence of rows of logits, in nats."""

    def log_softmax(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64)
        x = x - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    p, q = log_softmax(wanted), log_softmax(found)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def guided(backend: Backend, **limits: Any) -> Runner:
    """Rows with grammars, with budgets of thinking, with allowed ids, and rows with neither, in one batch."""
    runner = make_runner(
        backend,
        max_model_len=LONGEST,
        load_vocabulary=lambda: FakeMatcher,
        **({"budget": 40, "max_running": 8, "caching": False} | limits),
    )
    given: list[dict[str, Any]] = [
        {"guidance": Guidance(grammar=grammar(3, 9)), "logprobs": 2},
        {},
        {"guidance": Guidance(grammar=grammar(4, 6), after=(7, 8, 9), thinking_budget=2), "temperature": 1.0, "n": 2},
        {"guidance": Guidance(grammar=grammar(5, 9)), "allowed_token_ids": range(50), "presence_penalty": 0.7},
        {"temperature": 1.0, "presence_penalty": 0.5, "logprobs": 1, "prompt_logprobs": 1},
        {"guidance": Guidance(after=(1,), thinking_budget=3), "temperature": 1.0},
    ]
    for i, one in enumerate(given):
        runner.submit(str(i), PROMPTS[i % 3], **{"seed": i, "max_tokens": 8, "ignore_eos": True, **one})
    runner.finish()
    return runner


@pytest.mark.parametrize(
    ("blocks", "limits"),
    [(32, {}), (32, {"budget": 9, "max_running": 3}), (8, {"host_blocks": 20})],
    ids=["company", "chunks", "preemption"],
)
def test_guided_answers_are_those_of_the_reference(blocks: int, limits: dict[str, Any]) -> None:
    found, wanted = guided(cuda(tiny_model(), blocks), **limits), guided(reference(tiny_model()))
    assert found.engine.overlaps
    assert found.engine.counters.guidance.forced_tokens == 0 < wanted.engine.counters.guidance.forced_tokens
    assert found.tokens == wanted.tokens
    assert {key: final.finish_reason for key, final in found.final.items()} == {
        key: final.finish_reason for key, final in wanted.final.items()
    }


def test_a_step_behind_one_in_flight_takes_its_masks_when_they_are_there() -> None:
    """All masks of a step of many rows, in one copy, while other steps are in flight."""
    backend = cuda(tiny_model())
    step = RowStep(
        [RowChange("tokens", row, 0, np.array([5, 9], np.int32)) for row in range(6)]
        + [RowChange("blocks", row, 0, np.array([row], np.int32)) for row in range(6)],
        np.arange(6, dtype=np.int32),
        np.arange(0, 14, 2, dtype=np.int32),
        np.full(6, 2, np.int32),
        RowSamples(
            np.arange(1, 13, 2, dtype=np.int32),
            np.arange(6, dtype=np.int32),
            np.full(6, 2, np.int32),
            np.full(6, -1, np.int32),
            [Penalty(2, 2, 0.0, 0.0, 1.0, np.empty(0, np.int32), mask=True)] * 6,
        ),
        guided=True,
    )
    launched = backend.launch(step)
    with pytest.raises(RuntimeError, match="before its masks"):
        launched.collect()
    launched.choose([RowChange("mask", row, 0, bitmask((10 + row,), CONFIG.vocab)) for row in range(6)])
    assert launched.collect().tokens.tolist() == [10, 11, 12, 13, 14, 15]


def test_masks_of_all_rows_fit_into_one_copy() -> None:
    limits = StepLimits(tokens=256, rows=256, positions=64, block_size=16, processors=1, vocab=151_936)
    table = torch.zeros(buffer_shapes(CONFIG, limits, torch.float32).table.shape, dtype=torch.int32)
    rows = DeviceRows(table, torch.zeros(changes_size(limits), dtype=torch.int32), limits)
    mask = np.arange(limits.vocab // 32, dtype=np.int32)
    changes = [RowChange("mask", row, 0, mask + row) for row in range(limits.rows)]
    assert len(list(_together(changes, table_places(limits), changes_size(limits)))) == 1
    rows.apply(changes)
    for row in (0, 100, 255):
        assert np.array_equal(rows.table.mask[row, : len(mask)].numpy(), mask + row)
