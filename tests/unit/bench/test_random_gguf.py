"""Files of random weights: read by our loader, the same weights in bf16, the sizes of the published ones."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.native import needs_native

from bench.lib import models
from bench.lib.random_gguf import Q4_K, Q6_K, blocks, tensors, write
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.ggml_dequant import BlockFormat, dequantize_blocks, split_blocks
from octavo_inference.models.weights import bf16_bits, bf16_values, dequantize

TINY = {
    name: replace(config, layers=9, hidden=256, heads=4, kv_heads=2, head_dim=64, intermediate=512, vocab=600)
    for name, config in models.MODELS.items()
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "CACHE", tmp_path)


def loaded(path: Path) -> LoadedModel:
    model = load_model(str(path))
    assert isinstance(model, LoadedModel)
    return model


# Bytes of the published Q4_K_M files of Llama-3.2-1B-Instruct and Qwen3-4B; some megabytes of them are vocabulary.
@pytest.mark.parametrize(("name", "published"), [("1b", 807_694_464), ("4b", 2_497_280_256)])
def test_a_file_has_the_size_of_the_published_one(name: str, published: int) -> None:
    assert 0.985 * published < models.gguf_bytes(models.MODELS[name]) < published


@pytest.mark.parametrize("name", ["1b", "4b"])
def test_a_written_file_is_read_as_its_shape(name: str) -> None:
    config = TINY[name]
    model = loaded(models.write_gguf(config))
    usual = replace(config, rotary_dim=64, query_scale=config.score_scale, bos_token_id=1)
    assert replace(model.config, digest="") == usual
    kinds = [layer.down.format for layer in model.weights.layers]
    assert kinds == ["q6_k" if layer in {0, 3, 6, 7, 8} else "q4_k" for layer in range(9)]
    assert [layer.v.format for layer in model.weights.layers] == kinds
    assert model.weights.embedding.format == "q6_k"
    assert model.text.tokenizer.get_vocab_size() == 600


@pytest.mark.parametrize("name", ["1b", "4b"])
def test_the_bf16_folder_has_the_same_weights(name: str) -> None:
    given, found = loaded(models.write_gguf(TINY[name])), loaded(models.write_bf16(TINY[name]))
    assert found.config.qk_norm == given.config.qk_norm
    for stored, plain in zip(given.weights.tensors(), found.weights.tensors(), strict=True):
        wide = np.ascontiguousarray(dequantize(stored))
        expected = wide if stored.format == "f32" else bf16_values(bf16_bits(wide)).reshape(wide.shape)
        assert np.array_equal(dequantize(plain), expected)
    header = models.bf16_folder(TINY[name]) / "model.safetensors"
    assert header.stat().st_size > models.bf16_bytes(TINY[name])
    settings = json.loads((header.parent / "config.json").read_text())
    assert settings["model_type"] == {"1b": "llama", "4b": "qwen3"}[name]


@needs_native
@pytest.mark.parametrize("name", ["1b", "4b"])
def test_activations_stay_finite_and_answers_follow_from_the_seed(name: str) -> None:
    from octavo_inference import LLM, SamplingParams

    llm = LLM(str(models.write_gguf(TINY[name])), threads=1, kv_memory=8 << 20, max_model_len=64)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
    [first, again] = llm.generate([[300, 400, 500, 20]] * 2, params, use_tqdm=False)
    assert first.outputs[0].token_ids == again.outputs[0].token_ids
    assert len(first.outputs[0].token_ids) == 8


@pytest.mark.parametrize(("kind", "format_"), [(Q4_K, "q4_k"), (Q6_K, "q6_k")])
def test_blocks_are_weights_around_zero_of_the_size_that_keeps_activations(kind: int, format_: BlockFormat) -> None:
    data = blocks(kind, (64, 2048), np.random.default_rng(0))
    values = dequantize_blocks(format_, data)
    assert values.std() * 2048**0.5 == pytest.approx(1, abs=0.02)
    assert abs(values.mean()) < 0.03 * values.std()
    parts = split_blocks(format_, data)
    assert len(np.unique(parts.values)) == {"q4_k": 16, "q6_k": 64}[format_]
    if parts.minimum is not None:
        assert np.allclose(parts.minimum, -7.5 * parts.scale, rtol=2e-2)


def test_another_shape_is_another_folder_and_a_file_is_written_once() -> None:
    path = models.write_gguf(TINY["1b"])
    written = path.stat().st_mtime_ns
    assert models.write_gguf(TINY["1b"]).stat().st_mtime_ns == written
    other = replace(TINY["1b"], intermediate=768)
    assert models.folder_of(other) != models.folder_of(TINY["1b"])
    assert [p.name for p in path.parent.iterdir()] == ["model.gguf"]


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first, again, other = (write(tmp_path / f"{i}.gguf", "x", TINY["4b"], seed) for i, seed in enumerate((0, 0, 1)))
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()


def test_a_full_disk_is_said_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(RuntimeError, match=r"needs 0.0 GB, 0.0 are free"):
        models.write_gguf(TINY["1b"])
    assert not models.gguf_file(TINY["1b"]).exists()


def test_rows_that_are_not_whole_blocks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rows of 100 elements are not whole blocks of 256"):
        write(tmp_path / "x.gguf", "x", replace(TINY["1b"], intermediate=100))


def test_only_untied_models_have_a_head() -> None:
    names = {name: kind for name, _, kind in tensors(replace(TINY["1b"], tied_embeddings=False))}
    assert (names["token_embd.weight"], names["output.weight"]) == (Q4_K, Q6_K)
    assert "output.weight" not in {name for name, _, _ in tensors(TINY["1b"])}
