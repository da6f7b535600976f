"""Families whose code transformers does not have: logits against models of the same arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from .families import FAMILIES, backends, build, compare
from .gguf_more_files import GGUF_OTHERS, write_more_gguf
from .others import OTHERS


@pytest.mark.parametrize("name", OTHERS)
def test_from_safetensors(name: str, tmp_path: Path) -> None:
    model = OTHERS[name](tmp_path)
    for backend in backends(tmp_path, FAMILIES["llama"].max_model_len, only_best=True):
        compare(FAMILIES["llama"], model, backend)


@pytest.mark.parametrize("name", GGUF_OTHERS)
def test_from_gguf(name: str, tmp_path: Path) -> None:
    model = OTHERS[name](tmp_path)
    path = write_more_gguf(tmp_path / "model.gguf", model, GGUF_OTHERS[name])
    for backend in backends(path, FAMILIES["llama"].max_model_len, only_best=True):
        compare(FAMILIES["llama"], model, backend)


def test_exaone_3_from_gguf_has_the_arithmetic_of_llama(tmp_path: Path) -> None:
    model = build(FAMILIES["llama"])
    path = write_more_gguf(tmp_path / "model.gguf", model, "exaone")
    for backend in backends(path, FAMILIES["llama"].max_model_len, only_best=True):
        compare(FAMILIES["llama"], model, backend)
