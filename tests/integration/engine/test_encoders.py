"""Encoders, and decoders without a head, from safetensors: hidden states against transformers in float32."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tests.support.native import needs_native

from octavo_inference import LLM
from octavo_inference.common.errors import RequestError, SettingsError, UnsupportedModelError
from octavo_inference.config.engine import BackendName, PoolingName
from octavo_inference.model_loader import LoadedModel, as_foreign, load_model

from .encoders import (
    CROSS,
    CROSS_IN_EVERY_RUN,
    ENCODERS,
    IN_EVERY_RUN,
    Encoder,
    ids_of,
    prompts,
    save_words,
    states_of,
    whole_batch,
    words,
    written,
)
from .families import backends

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in IN_EVERY_RUN else [pytest.mark.full]) for name in ENCODERS]
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


def pooled(model: Any, text: str, pooling: str) -> NDArray[np.float32]:
    states = states_of(model, [2, *ids_of(text), 2])
    found: NDArray[np.float32] = {"cls": states[0], "last": states[-1], "mean": states.mean(axis=0)}[pooling]
    return found


def declare(folder: Path, pooling: str, *others: str) -> None:
    """Files of sentence-transformers: a pooling, and other modules."""
    names = ["", "Pooling", *others]
    kinds = ["Transformer", "Pooling", *others]
    entries = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{name}" if name else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{name}": name == pooling for name in ("cls_token", "mean_tokens", "lasttoken")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))


TEXTS = [words(length, seed) for seed, length in enumerate((50, 3, 28, 80, 1))]


@needs_native
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_embeddings(pooling: PoolingName, backend: BackendName, tmp_path: Path) -> None:
    model = written(ENCODERS["bert"], tmp_path)
    save_words(tmp_path, typed=True)
    # A step holds one of the longer texts.
    llm = LLM(str(tmp_path), backend=backend, dtype="float32", max_model_len=100, max_batched_tokens=100)
    for text, found in zip(TEXTS, llm.embed(TEXTS, pooling=pooling, use_tqdm=False), strict=True):
        expected = pooled(model, text, pooling)
        assert np.abs(found.embedding - expected / np.linalg.norm(expected)).max() < 2e-4
    llm.engine.check()
    assert llm.engine.stats().blocks_pinned == 0


@needs_native
def test_the_pooling_that_files_of_sentence_transformers_declare(tmp_path: Path) -> None:
    model = written(ENCODERS["modernbert"], tmp_path)
    save_words(tmp_path, typed=False)
    declare(tmp_path, "cls_token")
    [found] = LLM(str(tmp_path), dtype="float32").embed(TEXTS[0], use_tqdm=False)
    assert np.abs(found.embedding - pooled(model, TEXTS[0], "cls")).max() < 2e-4  # no Normalize


@needs_native
def test_dense_modules_follow_the_pooling(tmp_path: Path) -> None:
    model = written(ENCODERS["embeddinggemma"], tmp_path)
    save_words(tmp_path, typed=False)
    declare(tmp_path, "mean_tokens", "Dense", "Dense", "Normalize")
    rng, expected = np.random.default_rng(5), pooled(model, TEXTS[0], "mean")
    for folder, (rows, columns), name in (("2_Dense", (96, 64), "Identity"), ("3_Dense", (32, 96), "Tanh")):
        (tmp_path / folder).mkdir()
        weight = rng.normal(0, 0.1, (rows, columns)).astype(np.float32)
        save_file({"linear.weight": weight}, tmp_path / folder / "model.safetensors")
        config = {
            "in_features": columns,
            "out_features": rows,
            "bias": False,
            "activation_function": f"torch.nn.{name}",
        }
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
        expected = weight @ expected
        expected = np.tanh(expected) if name == "Tanh" else expected
    llm = LLM(str(tmp_path), dtype="float32")
    [found] = llm.embed(TEXTS[0], use_tqdm=False)
    assert np.abs(found.embedding - expected / np.linalg.norm(expected)).max() < 2e-4
    with pytest.raises(RequestError, match="dimensions is 33, it must be from 1 to 32"):
        llm.embed(TEXTS[0], dimensions=33)


@needs_native
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in CROSS_IN_EVERY_RUN else [pytest.mark.full]) for name in CROSS]
)
def test_scores_of_pairs(name: str, tmp_path: Path) -> None:
    model, typed = written(CROSS[name], tmp_path), name == "bert"
    save_words(tmp_path, typed=typed)
    query, documents = words(12, 9), TEXTS[:3]
    llm = LLM(str(tmp_path), dtype="float32", max_model_len=95)
    found = llm.score(query, documents, use_tqdm=False)
    for document, score in zip(documents, found, strict=True):
        tokens = [2, *ids_of(query), 2, *ids_of(document), 2]
        types = {"token_type_ids": torch.tensor([[int(at >= 14) for at in range(len(tokens))]])} if typed else {}
        with torch.inference_mode():
            logit = model(torch.tensor([tokens]), **types).logits.item()
        assert abs(score - 1 / (1 + math.exp(-logit))) < 1e-4
    assert len({round(score, 3) for score in found}) == 3
    with pytest.raises(RequestError, match="scores pairs of texts and gives no embeddings"):
        llm.embed(query)
    with pytest.raises(RequestError, match="scores pairs of texts and generates no text"):
        llm.generate(query)


@needs_native
@pytest.mark.parametrize(
    "declared",
    [
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5"}},
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
    ],
)
def test_scores_without_a_sigmoid_where_the_files_say_so(declared: dict[str, Any], tmp_path: Path) -> None:
    model = written(CROSS["modernbert"], tmp_path)
    save_words(tmp_path, typed=False)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | declared))
    [found] = LLM(str(tmp_path), dtype="float32").score(TEXTS[0], TEXTS[1], use_tqdm=False)
    with torch.inference_mode():
        logit = model(torch.tensor([[2, *ids_of(TEXTS[0]), 2, *ids_of(TEXTS[1]), 2]])).logits.item()
    assert abs(found - logit) < 2e-4
    assert not 0 <= found <= 1


def test_a_prompt_that_no_step_holds(tmp_path: Path) -> None:
    written(ENCODERS["bert"], tmp_path)
    save_words(tmp_path, typed=True)
    with pytest.raises(SettingsError, match="max_batched_tokens 64 is less than max_model_len 128, and an encoder"):
        LLM(str(tmp_path), backend="reference", max_batched_tokens=64, max_running_requests=8)


def test_a_classifier_of_several_labels_is_refused(tmp_path: Path) -> None:
    written(replace(CROSS["bert"], changes={"num_labels": 3}), tmp_path)
    with pytest.raises(UnsupportedModelError, match="a classifier of 3 labels is not supported"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("encoder", [ENCODERS["bert"], ENCODERS["qwen3-embedding"], CROSS["bert"]])
def test_transformers_does_not_take_the_place_of_what_generates_no_text(encoder: Encoder, tmp_path: Path) -> None:
    written(encoder, tmp_path)
    loaded = load_model(str(tmp_path))
    assert isinstance(loaded, LoadedModel)
    with pytest.raises(UnsupportedModelError, match="lacks it; transformers, which could take its place, only"):
        as_foreign(loaded, "the CUDA backend lacks it")
