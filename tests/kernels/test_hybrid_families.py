"""Families with state layers or latents, tiny and random, against the logits of transformers, in chunks and decodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..integration.engine.families import HYBRIDS, LATENT, LATENT_EXPERTS  # noqa: TID252 -- tests are no package
from .family_logits import compare_family

ALL = HYBRIDS | LATENT | LATENT_EXPERTS
# State layers alone, and latents with experts; kernels of the other kinds have tests of their own.
_FEW = ("mamba2", "deepseek_v3-experts")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in _FEW else [pytest.mark.full]) for name in ALL])
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    compare_family(ALL[name], tmp_path)
