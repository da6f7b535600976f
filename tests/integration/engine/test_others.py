"""Families whose code transformers does not have: logits against models of the same arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from .families import FAMILIES, backends, compare
from .others import OTHERS


@pytest.mark.parametrize("name", OTHERS)
def test_from_safetensors(name: str, tmp_path: Path) -> None:
    model = OTHERS[name](tmp_path)
    for backend in backends(tmp_path, FAMILIES["llama"].max_model_len, only_best=True):
        compare(FAMILIES["llama"], model, backend)
