"""The look at a draft model: it has to fit the model whose answers it guesses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.prefetch.fake_hub import COMMIT, FakeHub
from tests.unit.prefetch.test_inspect import LLAMA, llama_files

from octavo_inference.inspect_model import main
from octavo_protocol.model import ModelFailure, ModelReport, decode_inspection


def tokenizer(count: int, start: int = 0) -> bytes:
    vocabulary = {str(number + start): number for number in range(count)}
    return json.dumps(
        {"version": "1.0", "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "0"}}
    ).encode()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return written(tmp_path / "model", {**llama_files(), "tokenizer.json": tokenizer(256)})


def written(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def looked_at(model: str, draft: str, tmp_path: Path, *more: str) -> ModelReport | ModelFailure:
    report = tmp_path / "report"
    main([model, "--draft", draft, "--report", str(report), *more])
    return decode_inspection(report.read_bytes())


def test_a_fitting_draft_model_is_part_of_the_report(model: Path, tmp_path: Path) -> None:
    draft = written(tmp_path / "small", {**llama_files(), "tokenizer.json": tokenizer(200)})
    found = looked_at(str(model), str(draft), tmp_path)
    assert isinstance(found, ModelReport)
    assert found.draft is not None
    assert found.draft.weights == found.weights
    assert found.gpu is not None
    assert found.draft.gpu is None, "it computes on CPUs"


@pytest.mark.parametrize(
    ("config", "words", "message"),
    [
        (
            LLAMA,
            tokenizer(256, start=1),
            "the draft model has another vocabulary than the model (256 tokens, 256 there",
        ),
        ({**LLAMA, "architectures": ["OwnForCausalLM"]}, tokenizer(256), "Octavo's own kernels do not compute it"),
    ],
)
def test_another_vocabulary_or_unknown_layers_are_refused(
    config: dict[str, Any], words: bytes, message: str, model: Path, tmp_path: Path
) -> None:
    draft = written(tmp_path / "small", {**llama_files(config), "tokenizer.json": words})
    found = looked_at(str(model), str(draft), tmp_path)
    assert isinstance(found, ModelFailure)
    assert (found.reason, found.draft) == ("DraftModelMismatch", True)
    assert message in found.message
    # Another image has its own rules.
    assert isinstance(looked_at(str(model), str(draft), tmp_path, "--any-architecture"), ModelReport)


def test_a_draft_model_of_a_hub_is_fetched_with_its_vocabulary(
    hub: FakeHub, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.files = {**llama_files(), "tokenizer.json": tokenizer(256)}
    found = looked_at(str(model), "hf://org/tiny", tmp_path)
    assert isinstance(found, ModelReport)
    assert found.draft is not None
    assert (found.revision, found.draft.revision) == ("", COMMIT)
    # The same with both of a hub, whose weights are not fetched.
    both = looked_at("hf://org/tiny", "hf://org/tiny", tmp_path)
    assert isinstance(both, ModelReport)
    assert both.draft is not None
    assert both.draft.revision == both.revision == COMMIT


def test_a_missing_draft_model_is_its_own_failure(
    hub: FakeHub, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    found = looked_at(str(model), "hf://org/none", tmp_path)
    assert isinstance(found, ModelFailure)
    assert (found.reason, found.draft) == ("ModelNotFound", True)


def test_the_vocabulary_of_a_cached_model_is_the_downloaded_one(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.files = {**llama_files(), "tokenizer.json": tokenizer(256)}
    cache = tmp_path / "cache"
    found = looked_at("hf://org/tiny", "hf://org/tiny", tmp_path, "--cache", str(cache))
    assert isinstance(found, ModelReport)
    assert found.draft is not None
    assert found.draft.path == "", "each pod downloads it"
    assert found.path == f"org--tiny/{COMMIT}"
