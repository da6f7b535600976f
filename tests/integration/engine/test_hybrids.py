"""Families with state layers: logits against transformers in float32."""

from __future__ import annotations

from pathlib import Path

import pytest

from .families import HYBRIDS, backends, build, compare, params, save
from .gguf_hybrids import GGUF, write_hybrid

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", params(HYBRIDS))
def test_from_safetensors(name: str, tmp_path: Path) -> None:
    family = HYBRIDS[name]
    model = build(family)
    save(model, tmp_path)
    for backend in backends(tmp_path, family.max_model_len, only_best=True):
        compare(family, model, backend)


@pytest.mark.parametrize("name", params(GGUF))
def test_from_gguf(name: str, tmp_path: Path) -> None:
    family = HYBRIDS[name]
    model = build(family)
    path = write_hybrid(tmp_path / "model.gguf", model, GGUF[name])
    for backend in backends(path, family.max_model_len, only_best=True):
        compare(family, model, backend)


@pytest.mark.full
def test_older_gguf_files_of_qwen3_next(tmp_path: Path) -> None:
    family = HYBRIDS["qwen3_next-sparse"]
    model = build(family)
    path = write_hybrid(tmp_path / "model.gguf", model, "qwen3next", old=True)
    for backend in backends(path, family.max_model_len, only_best=True):
        compare(family, model, backend)
