"""Logits of tiny random models of transformers on the CUDA backend: prompts in chunks, then decodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.device import Device, find_device
from octavo_inference.core.model_input import RowChange, RowSamples, RowStep, sampling_columns
from octavo_inference.model_loader import LoadedModel, load_model

from ..integration.engine.families import VOCAB, Family, build, save  # noqa: TID252 -- tests are no package

BLOCK, LONGEST, BLOCKS = 8, 48, 128
LENGTHS = (21, 5, 40)
SPANS = ((0, 4), (4, 5), (5, 20), (20, 21), (21, 40))
"""What each sequence computes in a step, as far as it is long enough."""


def compare_family(family: Family, folder: Path) -> CudaBackend:
    """Compare a random model of a family."""
    model = build(family)
    save(model, folder)
    return compare(model, folder)


def compare(model: Any, folder: Path) -> CudaBackend:
    """Compare the model of a folder with that of transformers after each step."""
    backend = created(folder, find_device(), torch.float32)
    for found, wanted in zip(computed(backend), expected(model), strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-4 * np.abs(wanted).max() + 2e-5)
    return backend


def created(folder: Path, device: Device, dtype: torch.dtype) -> CudaBackend:
    """The backend of a folder's model, with room for all prompts."""
    loaded = load_model(str(folder))
    assert isinstance(loaded, LoadedModel)
    return CudaBackend.create(
        loaded.config, loaded.weights, device=device, num_blocks=BLOCKS, block_size=BLOCK, max_batched_tokens=48,
        max_running=4, max_model_len=LONGEST, dtype=dtype,
    )  # fmt: skip


def prompts() -> list[np.ndarray]:
    return [np.random.default_rng(i).integers(3, VOCAB, length).astype(np.int32) for i, length in enumerate(LENGTHS)]


def computed(backend: CudaBackend) -> Iterator[np.ndarray]:
    """Logits after each step of each sequence that takes part in it."""
    tokens = prompts()
    for first, end in SPANS:
        yield from backend.logits(step(tokens, rows_until(end), first, end, len(backend.layout.groups)))


def expected(model: Any) -> Iterator[np.ndarray]:
    """The same of transformers."""
    with torch.inference_mode():
        logits = [model(torch.tensor(t[None]), use_cache=False).logits[0].float().numpy() for t in prompts()]
    for _, end in SPANS:
        yield from (logits[row][end - 1] for row in rows_until(end))


def rows_until(end: int) -> list[int]:
    """Sequences of so many tokens or more."""
    return [row for row, length in enumerate(LENGTHS) if length >= end]


def step(tokens: list[np.ndarray], rows: list[int], first: int, end: int, groups: int) -> RowStep:
    """Tokens `first` to `end` of some sequences, each with blocks of its own in each of the tables."""
    changes, columns = [], -(-LONGEST // BLOCK)
    assert len(LENGTHS) * groups * columns <= BLOCKS
    for row in rows:
        blocks = np.arange(groups * columns, dtype=np.int32) + groups * columns * row
        changes += [
            RowChange("tokens", row, 0, tokens[row]),
            RowChange("blocks", row, 0, blocks),
            RowChange("sampling", row, 0, sampling_columns()),
        ]
    own, count = np.array(rows, np.int32), len(rows)
    query_start = (end - first) * np.arange(count + 1, dtype=np.int32)
    lengths = np.full(count, end, np.int32)
    samples = RowSamples(query_start[1:] - 1, own, lengths, np.full(count, -1, np.int32), [None] * count)
    return RowStep(changes, own, query_start, lengths, samples)
