"""Inspects a draft model, and whether it fits the model whose answers it guesses. No weights are read.

The engine checks the same when it starts. It takes both vocabularies, which no other inspection reads.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from octavo_inference.common.errors import SettingsError
from octavo_inference.download.hub import connect
from octavo_inference.download.inspect import DESCRIPTIONS, fetch_heads, inspect, is_remote, or_failure
from octavo_inference.engine.draft import require_pair
from octavo_inference.model_loader import load_text
from octavo_protocol.model import ModelFailure, ModelReport

_SUBJECT = "the draft model"
_WITH_VOCABULARY = DESCRIPTIONS | {"tokenizer.json", "tokenizer_config.json"}


def look_at_draft(
    target: str, model_target: str, model: ModelReport, cache: Path | None, *, any_architecture: bool
) -> ModelReport | ModelFailure:
    """The report on a draft model. `model` is the report on the target whose answers it guesses.

    With `any_architecture` another image serves the two, and decides whether they fit.
    """

    def found() -> ModelReport:
        with tempfile.TemporaryDirectory() as folder:
            path, commit = _opened(target, Path(folder) / "draft")
            if not any_architecture:
                cached = "" if cache is None else str(cache / model.path)
                at = cached or _opened(model_target, Path(folder) / "model", model.revision)[0]
                require_pair(_SUBJECT, load_text(at), load_text(path))
            report = inspect(path, any_architecture=any_architecture)
            return msgspec.structs.replace(report, revision=commit, gpu=None)

    try:
        result = or_failure(found)
    except SettingsError as error:
        result = ModelFailure(reason="DraftModelMismatch", message=str(error))
    return msgspec.structs.replace(result, draft=True) if isinstance(result, ModelFailure) else result


def _opened(target: str, folder: Path, revision: str = "") -> tuple[str, str]:
    """The path of a target and its commit. Of a remote one `folder` receives sparse files with its vocabulary."""
    if not is_remote(target):
        return target, ""
    remote, repo, named = connect(target)
    folder.mkdir()
    return str(folder), fetch_heads(remote, repo, revision or named, folder, _WITH_VOCABULARY)
