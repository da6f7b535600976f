"""Log-probabilities, ranks and alternatives against the rule in numpy: ids and ranks exactly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from octavo_inference.backends.cuda.kernels.logprobs import log_probabilities
from octavo_inference.backends.cuda.kernels.sampler_scratch import ReportScratch, report_shapes
from octavo_inference.core.sampling import log_probabilities as rule

# Exponentials are float32, their sum float64, and the result float32 of a size of at most 16.
TOLERANCE = 2e-6


def scratch_of(rows: int, vocab: int, alternatives: int, *, tile: int | None = None) -> ReportScratch[torch.Tensor]:
    """Scratch memory with something in it."""
    shapes = report_shapes(rows, vocab, alternatives, tile=tile)
    return ReportScratch(*(torch.randint(0, 9999, shape).to(dtype) for shape, dtype in shapes))


@pytest.mark.parametrize(("vocab", "tile"), [(32, 32), (99, 32), (99, 8), (1000, 1024)])
@pytest.mark.parametrize("kind", ["normal", "tied", "banned", "only the last"])
def test_log_probabilities(vocab: int, tile: int, kind: str, record: Callable[..., None]) -> None:
    random = np.random.default_rng(vocab)
    logits = random.standard_normal((4, vocab)).astype(np.float32) * 2
    if kind == "tied":
        logits = np.round(logits)
    elif kind == "banned":  # fewer that are possible than are asked for
        logits[:, 3:-1] = -np.inf
    elif kind == "only the last":
        logits[:, :-1] = -np.inf
    tokens = np.array([2, vocab - 1, 0, 1], np.int32)
    wanted = np.array([7, 0, -1, 3], np.int32)
    integers, floats = torch.full((4, 9), -7, dtype=torch.int32), torch.full((4, 9), -7.0)
    scratch = scratch_of(4, vocab, 8, tile=tile)
    log_probabilities(*map(torch.from_numpy, (logits, tokens, wanted)), integers, floats, scratch, tile=tile)
    worst = 0.0
    for i in (0, 1, 3):
        logprob, rank, (ids, values) = rule(logits[i], int(tokens[i]), int(wanted[i]))
        end = 1 + len(ids)
        assert integers[i, :end].tolist() == [rank, *ids]
        assert (integers[i, end:] == -7).all()
        expected, found = np.array([logprob, *values]), floats[i, :end].numpy()
        possible = np.isfinite(expected)
        assert (found[~possible] == -np.inf).all()
        worst = max(worst, float(np.abs(found[possible] - expected[possible]).max()))
    assert worst < TOLERANCE
    assert (integers[2] == -7).all(), "who asks for nothing gets nothing"
    record("log_probabilities", (4, vocab), torch.float32, worst)


def test_row_without_a_choice_and_more_alternatives_than_ids() -> None:
    logits = torch.tensor([[float("nan"), 1.0, 0.0], [0.0, 1.0, 1.0]])
    integers, floats = torch.full((2, 6), -7, dtype=torch.int32), torch.zeros(2, 6)
    tokens, wanted = torch.tensor([-1, 2], dtype=torch.int32), torch.tensor([5, 5], dtype=torch.int32)
    log_probabilities(logits, tokens, wanted, integers, floats, scratch_of(2, 3, 5))
    assert integers.tolist() == [[-7] * 6, [1, 1, 2, 0, -7, -7]]
