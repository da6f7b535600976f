"""Every family, quantized from a safetensors folder and from GGUF: configuration and weights come back."""

from __future__ import annotations

import io
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.weights import dequantize
from octavo_inference.tools.quantize.decoder import layer_values
from octavo_inference.tools.quantize.recipe import Recipe
from octavo_inference.tools.quantize.run import quantize
from octavo_inference.tools.quantize.text import Windows

from .families import FAMILIES, VOCAB, build, save
from .gguf_files import GGUF, write_gguf

pytestmark = pytest.mark.timeout(600)


def loaded(path: Path) -> LoadedModel:
    model = load_model(str(path))
    assert isinstance(model, LoadedModel)
    return model


def check(source: LoadedModel, folder: Path) -> None:
    """Quantize a model to 8 bits and load the result."""
    tokens = np.random.default_rng(0).integers(3, VOCAB, (3, 30))
    recipe = Recipe("int8", "rtn", None)
    result = quantize(source, folder, recipe, Windows(tokens[:2], tokens[2:], "random"), io.StringIO())
    assert result.quality.mean_kl < 0.05
    found = loaded(folder)
    for field in fields(source.config):
        expected, value = getattr(source.config, field.name), getattr(found.config, field.name)
        if field.name == "query_scale":
            assert value == pytest.approx(source.config.score_scale, rel=1e-6)
        elif field.name == "architecture" and (expected, value) == ("llama", "mistral"):
            assert source.config.windows  # which GGUF calls llama
        elif field.name != "digest":
            assert value == expected, field.name
    for before, after in zip(source.weights.layers, found.weights.layers, strict=True):
        values, rounded = layer_values(before), layer_values(after)
        assert values.keys() == rounded.keys()
        for name, expected in values.items():
            # An int8 step of the largest weight of a row; norms and biases are as they were.
            bound = np.abs(expected).max() / 120 if expected.ndim == 2 else 1e-6
            assert np.abs(rounded[name] - expected).max() <= bound, name
    for name in ("embedding", "final_norm", "lm_head"):
        before, after = (dequantize(getattr(model.weights, name)) for model in (source, found))
        np.testing.assert_allclose(after, before, rtol=2**-8)


@pytest.mark.parametrize("name", FAMILIES)
def test_from_safetensors(name: str, tmp_path: Path) -> None:
    save(build(FAMILIES[name]), tmp_path / "source")
    check(loaded(tmp_path / "source"), tmp_path / "out")


@pytest.mark.parametrize("name", GGUF)
def test_from_gguf(name: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", build(FAMILIES[name]), GGUF[name])
    check(loaded(path), tmp_path / "out")
