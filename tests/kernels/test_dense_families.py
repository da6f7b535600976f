"""Dense families, tiny and random, against the logits of transformers: prompts in chunks, then decodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..integration.engine.families import DENSE  # noqa: TID252 -- tests are no package
from ..integration.engine.others import OTHERS  # noqa: TID252 -- as above
from .family_logits import compare, compare_family

# Between them: LayerNorm with biases, parallel layers of one and two norms, norms of the outputs alone and over all
# heads, norms of each head with weights of its own, ALiBi, learned positions, MLPs without a gate, a bias of the head.
_FEW = ("bloom", "cohere-norms", "gpt2", "gptj", "olmo2")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in _FEW else [pytest.mark.full]) for name in DENSE]
)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    compare_family(DENSE[name], tmp_path)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", OTHERS)
def test_logits_are_those_of_models_of_the_same_arithmetic(name: str, tmp_path: Path) -> None:
    """Layers with key-value heads and inner elements of their own, without attention, and without an MLP."""
    compare(OTHERS[name](tmp_path), tmp_path)
