"""The pooling that a checkpoint of sentence-transformers declares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.logs import warnings_of

from octavo_inference.checkpoints import sentence_transformers
from octavo_inference.checkpoints.sentence_transformers import declared_pooling, declares_normalized

from .conftest import declare_pooling

MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False, "word_embedding_dimension": 64}
LAST = {"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}
CLS = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


@pytest.mark.parametrize(
    ("modes", "pooling"), [(MEAN, "mean"), (LAST, "last"), (CLS, "cls"), ({"pooling_mode": "lasttoken"}, "last")]
)
def test_the_declared_pooling(tmp_path: Path, modes: dict[str, object], pooling: str) -> None:
    declare_pooling(tmp_path, modes)
    assert declared_pooling(tmp_path) == pooling


def test_the_declared_pooling_of_a_file_in_the_folder(tmp_path: Path) -> None:
    declare_pooling(tmp_path, MEAN)
    (tmp_path / "model.gguf").touch()
    assert declared_pooling(tmp_path / "model.gguf") == "mean"


@pytest.mark.parametrize("modes", [{"pooling_mode_max_tokens": True}, {}, MEAN | {"pooling_mode_max_tokens": True}])
def test_another_pooling_is_logged_and_left(
    tmp_path: Path, modes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = warnings_of(sentence_transformers, monkeypatch, "log")
    declare_pooling(tmp_path, modes)
    assert declared_pooling(tmp_path) is None
    assert len(logged) == 1
    assert "supported: cls, mean, last" in logged[0]


@pytest.mark.parametrize("content", ["", "{", "{}", "[1]", '[{"type": "x.Pooling", "path": "../other"}]', "null"])
def test_files_that_declare_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "modules.json").write_text(content)
    assert declared_pooling(tmp_path) is None


def test_a_folder_without_such_files(tmp_path: Path) -> None:
    assert declared_pooling(tmp_path) is None


@pytest.mark.parametrize(("kinds", "normalized"), [((), True), (("Pooling",), False), (("Pooling", "Normalize"), True)])
def test_whether_embeddings_are_normalized(tmp_path: Path, kinds: tuple[str, ...], normalized: bool) -> None:
    if kinds:
        entries = [{"type": f"sentence_transformers.models.{kind}", "path": kind} for kind in kinds]
        (tmp_path / "modules.json").write_text(json.dumps(entries))
    assert declares_normalized(tmp_path) is normalized
