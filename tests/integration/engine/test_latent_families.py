"""Families with latent attention, from both kinds of files: logits against transformers in float32."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo_inference.checkpoints.outline import read_outline
from octavo_inference.model_loader import load_model
from octavo_inference.models.weights import Weights

from .families import LATENT, LATENT_EXPERTS, backends, build, compare, params, save
from .gguf_files import Kind, round_weights
from .gguf_latent_files import GGUF_LATENT, write_latent_gguf

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", params([*LATENT, *LATENT_EXPERTS]))
def test_from_safetensors(name: str, tmp_path: Path) -> None:
    family = (LATENT | LATENT_EXPERTS)[name]
    model = build(family)
    save(model, tmp_path)
    for backend in backends(tmp_path, family.max_model_len, only_best=name != "deepseek_v2"):
        compare(family, model, backend)


@pytest.mark.parametrize("name", GGUF_LATENT)
@pytest.mark.parametrize("separate", [False, True], ids=["kv_b", "k_b and v_b"])
def test_from_gguf(name: str, separate: bool, tmp_path: Path) -> None:
    family = LATENT[name]
    model = build(family)
    path = write_latent_gguf(tmp_path / "model.gguf", model, GGUF_LATENT[name], separate=separate)
    for backend in backends(path, family.max_model_len, only_best=True):
        compare(family, model, backend)


@pytest.mark.parametrize("separate", [False, True], ids=["kv_b", "k_b and v_b"])
def test_quantized_expansions(separate: bool, tmp_path: Path) -> None:
    family = LATENT["deepseek_v2-lite"]
    model = build(family)
    round_weights(model, Kind.Q8_0)
    path = write_latent_gguf(tmp_path / "model.gguf", model, "deepseek2", Kind.Q8_0, separate=separate)
    reference, cpu = backends(path, family.max_model_len, only_best=True, dtype="auto")
    # The expansion of keys of these files has its blocks along other columns, so it is rounded once more.
    compare(family, model, reference, tolerance=0.1 if separate else 2e-4)
    compare(family, model, cpu, tolerance=0.2)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0])
@pytest.mark.parametrize("separate", [False, True], ids=["kv_b", "k_b and v_b"])
def test_an_outline_has_the_formats_and_sizes_of_the_weights(kind: Kind, separate: bool, tmp_path: Path) -> None:
    model = build(LATENT["deepseek_v3"])
    gguf = write_latent_gguf(tmp_path / "model.gguf", model, "deepseek2", kind, separate=separate)
    save(model, tmp_path / "folder")
    for path in (gguf, tmp_path / "folder"):
        loaded = load_model(str(path))
        assert sizes(read_outline(path, loaded.config).weights) == sizes(loaded.weights)


def sizes(weights: Weights) -> list[tuple[str, tuple[int, ...]]]:
    return [(tensor.format, tensor.shape) for tensor in weights.tensors()]
