"""Families with experts, tiny and random, against the logits of transformers: prompts in chunks, then decodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..integration.engine.families import EXPERTS  # noqa: TID252 -- tests are no package
from .family_logits import compare_family

# The first has biases, clamped gates and sinks; the second norms over all heads of q and k.
_FEW = ("gpt_oss", "olmoe")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in _FEW else [pytest.mark.full]) for name in EXPERTS]
)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    backend = compare_family(EXPERTS[name], tmp_path)
    counts = backend.expert_tokens()
    assert counts is not None
    assert counts.sum() > 0
