"""Steps whose decodes split their keys, in graphs and launched kernel by kernel, against steps that split none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.backends.cuda.inputs import size_of
from octavo_inference.backends.cuda.launch_list import record
from octavo_inference.core.model_input import RowChange, RowSamples, RowStep, sampling_columns

from ..unit.engine.echo import tiny_model  # noqa: TID252 -- tests are no package

BLOCK, LONGEST = 16, 1024
LENGTHS = (1000, 700, 30, 257)
BLOCKS = 1 + sum(-(-length // BLOCK) for length in LENGTHS)


def backend(processors: int, *, graphs: bool) -> CudaBackend:
    """With random keys and values in its pool, the same for all."""
    found = CudaBackend.create(
        *tiny_model(), device=replace(find_device(), multiprocessors=processors), num_blocks=BLOCKS, block_size=BLOCK,
        max_batched_tokens=16, max_running=8, max_model_len=LONGEST, dtype=torch.float32,
        capture=record if graphs else None,
    )  # fmt: skip
    found._decoder.context.pool.data.copy_(
        torch.randn(found._decoder.context.pool.data.shape, generator=torch.Generator().manual_seed(1))
    )
    if found.graphs is not None:
        found.graphs.start()
        while found.idle():
            pass
    return found


def step(queries: list[int]) -> RowStep:
    """The last tokens of sequences of `LENGTHS`, so many of each."""
    rows, start = np.arange(len(queries), dtype=np.int32), np.cumsum([0, *queries], dtype=np.int32)
    seq_len = np.array(LENGTHS[: len(queries)], np.int32)
    changes, block = [], 1
    for row, length in enumerate(seq_len.tolist()):
        count = -(-length // BLOCK)
        changes += [
            RowChange("tokens", row, 0, np.random.default_rng(row).integers(0, 60, length).astype(np.int32)),
            RowChange("blocks", row, 0, np.arange(block, block + count, dtype=np.int32)),
            RowChange("sampling", row, 0, sampling_columns()),
        ]
        block += count
    samples = RowSamples(start[1:] - 1, rows, seq_len, np.full(len(rows), -1, np.int32), [None] * len(rows))
    return RowStep(changes, rows, start, seq_len, samples)


@pytest.mark.parametrize("queries", [[1], [1, 1, 1, 1], [1, 1, 1, 5]], ids=str)
def test_a_step_does_not_depend_on_the_parts(queries: list[int]) -> None:
    """On 12 multiprocessors, two KV heads have 12 shares; on one, all keys are one share."""
    split, whole, graphs = backend(12, graphs=False), backend(1, graphs=False), backend(12, graphs=True)
    given = step(queries)
    expected = whole.logits(given)
    found = split.logits(given)
    counts = split._stage.inputs(size_of(given)).parts[:, 2]
    assert counts.max() > 2, "keys were split"
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    assert graphs.launch(given).collect().tokens.tolist() == expected.argmax(axis=1).tolist()
    assert graphs.graphs is not None
    assert sum(captured.replays for captured in graphs.graphs.captured.values()) == 1
    # The list of a shorter step is not mixed with that of the step before.
    shorter = step([1])
    assert graphs.launch(shorter).collect().tokens.tolist() == whole.logits(shorter).argmax(axis=1).tolist()
