"""Encoders, and decoders without a head, from safetensors: hidden states against transformers in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .encoders import ENCODERS, prompts, states_of, whole_batch, written
from .families import backends

pytestmark = pytest.mark.timeout(600)

# Between them: norms after the sum, positions behind that of padding, a first layer without norm, windows in both
# directions.
_FEW = ("bert", "xlm-roberta", "modernbert", "embeddinggemma", "e5-mistral")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in _FEW else [pytest.mark.full]) for name in ENCODERS]
)
def test_hidden_states(name: str, tmp_path: Path) -> None:
    model, tokens = written(ENCODERS[name], tmp_path), prompts()
    expected = np.concatenate([states_of(model, prompt) for prompt in tokens])
    for backend in backends(tmp_path, 95, only_best=name != "bert"):
        found = backend.step(whole_batch(tokens, 64)).pooled
        assert np.abs(found - expected).max() < 2e-4, backend.name


def test_the_second_text_of_a_pair_has_the_second_token_type(tmp_path: Path) -> None:
    model, tokens = written(ENCODERS["bert"], tmp_path), prompts()
    types = [[int(at >= 4) for at in range(len(prompt))] for prompt in tokens]
    expected = np.concatenate([states_of(model, *pair) for pair in zip(tokens, types, strict=True)])
    for backend in backends(tmp_path, 95, only_best=True):
        found = backend.step(whole_batch(tokens, 64, types)).pooled
        assert np.abs(found - expected).max() < 2e-4, backend.name
