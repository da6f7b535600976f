"""Layers with a mixture of experts in the whole engine, its kernels interpreted, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.core.gather import gather
from octavo_inference.core.model_input import RowChange, RowSamples, RowStep, RowTable, TableField, sampling_columns
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Weights

from ..unit.engine.echo import CONFIG  # noqa: TID252 -- tests are no package
from .mixtures import EXPERTS, mixture_model
from .test_engine import BLOCK, LONGEST, cuda, reference

Model = tuple[ModelConfig, Weights]


def step(lengths: list[int], computed: int = 0) -> RowStep:
    """Prompts of these lengths, or with `computed` their next token; a block for every sequence."""
    rows = np.arange(len(lengths), dtype=np.int32)
    end = np.array(lengths, np.int32) + (1 if computed else 0)
    counts = np.ones(len(lengths), np.int32) if computed else end
    query_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    table, changes = RowTable.zeros(len(rows), LONGEST, BLOCK, CONFIG.vocab), []
    for row, length in enumerate(end.tolist()):
        table.tokens[row, :length] = np.random.default_rng(row).integers(0, 60, length)
        table.blocks[row] = 4 * row + np.arange(4)
        table.sampling[row] = sampling_columns()
        fields: tuple[TableField, ...] = ("tokens", "blocks", "sampling")
        changes += [RowChange(name, row, 0, getattr(table, name)[row]) for name in fields]
    nothing = np.full(len(rows), -1, np.int32)
    samples = RowSamples(query_start[1:] - 1, rows, end, nothing, [None] * len(rows))
    return RowStep(changes, rows, query_start, end, samples, table)


def logits(model: Model, steps: list[RowStep]) -> tuple[list[Any], list[Any], CudaBackend]:
    """Of each step, by the kernels and by the reference."""
    backend, other = cuda(model), reference(model)
    return [backend.logits(s) for s in steps], [other.logits(gather(s)) for s in steps], backend


@pytest.mark.parametrize("name", EXPERTS)
def test_logits_are_those_of_the_reference(name: str) -> None:
    """Prompts in tiles, then one token of each; then a single one."""
    steps = [step([9, 3, 5]), step([9, 3, 5], computed=1), step([10], computed=1)]
    found, expected, backend = logits(mixture_model(name), steps)
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() < 2e-5 * np.abs(other).max()
    counts = backend.expert_tokens()
    assert counts is not None
    layers = [part.feed_forward == "experts" for part in mixture_model(name)[0].parts]
    chosen = EXPERTS[name].chosen
    assert counts.sum(1).tolist() == [(17 + 3 + 1) * chosen * layer for layer in layers]
