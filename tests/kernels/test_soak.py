"""The soak of `bench.gpu check`, over a backend of hashes: it preempts and swaps, and finds a wrong token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.engine.echo import VOCAB
from tests.unit.engine.late import LateBackend

from bench.gpu import soak
from bench.gpu.check_engine import BLOCK_SIZE
from bench.gpu.checked_models import SMOLLM2
from octavo_inference.core.model_input import StepResult

CONFIG = replace(SMOLLM2, vocab=VOCAB)
SIZES = replace(soak.REAL, steps=600)


class Hashes(LateBackend):
    """`wrong`: the number of the step whose tokens are one too high; -1 for none."""

    def __init__(self, wrong: int = -1) -> None:
        super().__init__(SIZES.blocks, BLOCK_SIZE, rows=SIZES.rows, longest=SIZES.prompt + SIZES.out)
        self.wrong = wrong

    def step(self, batch: Any) -> StepResult:
        result = super().step(batch)
        self.wrong -= 1
        return replace(result, tokens=(result.tokens + 1) % VOCAB) if self.wrong == 0 else result

    def logits(self, _step: Any) -> np.ndarray:
        return np.arange(VOCAB, dtype=np.float32)[None]


def test_the_soak_is_well_over_preemptions_and_swaps() -> None:
    row = soak.compare(Hashes(), CONFIG, SIZES, exact=True)
    assert row["verdict"] == "ok", row
    assert row["overlap"]
    assert row["preemptions"] > row["swaps"] > 0
    assert row["tokens"] > 3000


@pytest.mark.parametrize("exact", [True, False])
def test_a_wrong_token_of_a_step_is_found(exact: bool) -> None:
    row = soak.compare(Hashes(wrong=40), CONFIG, replace(SIZES, steps=200), exact=exact)
    assert row["verdict"] == "wrong"
    assert row["gap"] >= 1


def test_a_soak_that_never_swapped_proves_too_little() -> None:
    row = soak.compare(Hashes(), CONFIG, replace(SIZES, steps=20), exact=True)
    assert (row["swaps"], row["verdict"]) == (0, "wrong")
