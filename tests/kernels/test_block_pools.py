"""Pools of transformers' attention calls on a GPU: kernels and torch attend alike, masks are known by their code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
    sliding_window_overlay,
)

from octavo_inference.backends.transformers import block_pools
from octavo_inference.backends.transformers.attention import KvShape, Mask, Scores
from octavo_inference.backends.transformers.backend import SCORED_TOKENS, TransformersBackend
from octavo_inference.backends.transformers.block_pools import BlockPools, block_elements, window_of
from octavo_inference.backends.transformers.load import load_module
from octavo_inference.backends.transformers.probe import difference, prepare
from octavo_inference.backends.transformers.rehearsal import rehearse
from octavo_inference.core.gather import Batch, SampleRows
from octavo_inference.model_loader import ForeignModel, load_model

from ..integration.engine.test_hf import VOCAB, write_model  # noqa: TID252 -- tests are no package

BLOCK, HEADS = 8, 4
SHAPES = [KvShape(2, 12, 8), KvShape(4, 8, 8), KvShape(2, 12, 12)]


def pools(count: int, shapes: list[KvShape] = SHAPES, dtype: torch.dtype = torch.float32) -> BlockPools:
    return BlockPools(shapes, dtype, num_blocks=count, block_size=BLOCK, device=torch.device("cpu"), multiprocessors=8)


def batch(spans: list[tuple[int, int]], blocks: int) -> Batch:
    """Sequences whose last tokens, from the first number to the second, are query tokens; their blocks are mixed."""
    lengths = np.array([end for _, end in spans], np.int32)
    columns = -(-int(lengths.max()) // BLOCK)
    table = np.random.default_rng(1).permutation(blocks)[: len(spans) * columns].reshape(len(spans), columns)
    positions = np.concatenate([np.arange(*span) for span in spans]).astype(np.int32)
    owner = np.repeat(np.arange(len(spans)), [end - start for start, end in spans])
    slots = table[owner, positions // BLOCK] * BLOCK + positions % BLOCK
    return Batch(
        tokens=np.zeros(len(positions), np.int32),
        positions=positions,
        slots=slots.astype(np.int32)[None],
        query_start=np.cumsum([0, *(end - start for start, end in spans)]).astype(np.int32),
        seq_len=lengths,
        block_table=table.astype(np.int32)[None],
        sample=SampleRows.greedy(np.zeros(1, np.int32), np.ones(1, np.int32)),
    )


@pytest.mark.parametrize("rule", [None, 16, Mask(sliding_window_causal_mask_function(16), 16)])
def test_kernels_attend_as_torch_does(rule: Mask | int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first decode has several parts.
    step = batch([(599, 600), (4, 5), (13, 20), (0, 9), (20, 21)], 400)
    results = []
    for in_torch in (False, True):
        if in_torch:
            monkeypatch.setattr(block_pools, "window_of", lambda _: -1)
            monkeypatch.setattr(block_pools, "LARGEST_HEAD", 0)
        torch.manual_seed(0)
        made = pools(400)
        for layer in made._layers:
            layer.normal_()
        run = made.begin(step)
        scores = Scores(rule, 0.4, 5.0, torch.randn(HEADS))
        tokens = len(step.tokens)
        results.append(
            [
                run.attend(
                    torch.randn(tokens, HEADS, shape.key_dim),
                    torch.randn(tokens, shape.heads, shape.key_dim),
                    torch.randn(tokens, shape.heads, shape.value_dim),
                    scores,
                )
                for shape in SHAPES
            ]
        )
        assert run.calls == len(made) == 3
    for found, wanted, shape in zip(*results, SHAPES, strict=True):
        assert found.shape == (len(step.tokens), HEADS, shape.value_dim)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_only_transformers_own_windows_are_windows() -> None:
    window = sliding_window_causal_mask_function(16)
    assert window_of(Mask(causal_mask_function, None)) is None
    assert window_of(Mask(window, 16)) == 16
    chunks = chunked_causal_mask_function(16, torch.zeros(1, dtype=torch.int64))
    overlaid = and_masks(sliding_window_overlay(8), window)
    for other in (
        Mask(window, 8),
        Mask(window, None),
        Mask(chunks, 16),
        Mask(overlaid, 16),
        Mask(lambda *_: True, None),
    ):
        assert window_of(other) == -1


def test_blocks_are_copied_cleared_and_kept_on_the_host() -> None:
    made = pools(4)
    for number, layer in enumerate(made._layers):
        layer.normal_().add_(number)
    before = [layer.clone() for layer in made._layers]
    saved = made.to_host([1, 3])
    assert saved.shape == (2, 4 * BLOCK * block_elements(SHAPES))
    made.copy_blocks([(1, 0), (0, 2)])
    made.clear_blocks([1])
    made.from_host(saved, [3, 1])
    for layer, old in zip(made._layers, before, strict=True):
        for block, source in enumerate([1, 3, 1, 1]):
            torch.testing.assert_close(layer[block], old[source], atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.full)])
def test_the_largest_steps_are_rehearsed(tmp_path: Path, dtype: torch.dtype) -> None:
    write_model(tmp_path, "Persimmon")
    model = load_model(str(tmp_path))
    assert isinstance(model, ForeignModel)
    module = load_module(tmp_path, model.config, dtype)
    shapes = prepare(module, model.config, tmp_path, lambda found, count, _: pools(count, list(found), dtype))
    backend = TransformersBackend("tested", module, pools(1, shapes, dtype), vocab=VOCAB)
    steps: list[Batch] = []
    compute = backend.logits

    def logits(step: Batch) -> np.ndarray:
        steps.append(step)
        return compute(step)

    backend.logits = logits  # type: ignore[method-assign]
    rehearse(backend, rows=3, tokens=40, longest=24)
    prompts, decodes = steps
    assert np.diff(prompts.query_start).tolist() == [24, 16]
    assert len(prompts.sample.row) == 40 <= 3 + SCORED_TOKENS
    assert np.diff(decodes.query_start).tolist() == [1, 1, 1]
    assert {*prompts.seq_len, *decodes.seq_len} == {24}


def test_the_probe_leaves_out_a_few_positions_of_rounded_logits_but_none_that_are_no_numbers() -> None:
    wanted = np.random.default_rng(0).standard_normal((80, 64)).astype(np.float32)
    turned, wrong, broken = (wanted.copy() for _ in range(3))
    turned[[3, 40, 77]] *= -1  # another expert was chosen for these
    wrong[::4] *= -1
    broken[5, 6] = np.nan
    assert difference(turned, wanted, 8) == 0
    assert difference(turned, wanted, 0) > 0.3
    assert difference(wrong, wanted, 8) > 0.5
    assert np.isnan(difference(broken, wanted, 8))
