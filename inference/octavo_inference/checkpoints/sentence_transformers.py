"""What a checkpoint of sentence-transformers declares in modules.json and the folders of its modules."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_inference.checkpoints.jsonfile import optional_json
from octavo_inference.config.engine import PoolingName

log = logging.getLogger(__name__)

_MODES: dict[str, PoolingName] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_NAMED: dict[str, PoolingName] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}


@dataclass(frozen=True, slots=True)
class TextModule:
    """One step from text to embedding: the last part of its class's name, and its folder ("" for the model's own)."""

    kind: str
    path: str


def modules(source: Path) -> list[TextModule]:
    """The modules of a model, given as its folder or as a file in it; [] if it declares none."""
    folder = source.parent if source.is_file() else source
    try:
        data: Any = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if not isinstance(data, list):
        return []
    found = [
        TextModule(str(entry.get("type")).rpartition(".")[2], str(entry.get("path", "")))
        for entry in data
        if isinstance(entry, dict)
    ]
    # A path of the checkpoint must not lead out of its folder.
    return [module for module in found if module.path == Path(module.path).name]


def declared_pooling(source: Path) -> PoolingName | None:
    """The declared pooling of a model, given as its folder or as a file in it. None if there is none or another."""
    folder = source.parent if source.is_file() else source
    for module in modules(source):
        if module.kind != "Pooling":
            continue
        path = folder / module.path / "config.json"
        settings = optional_json(path)
        modes = [name for name, value in settings.items() if name.startswith("pooling_mode_") and value is True]
        if len(modes) == 1 and modes[0] in _MODES:
            return _MODES[modes[0]]
        if not modes and settings.get("pooling_mode") in _NAMED:
            return _NAMED[settings["pooling_mode"]]
        log.warning(
            "%s: pooling %s is not supported; supported: %s",
            path,
            ", ".join(modes) or "without a mode",
            ", ".join(_NAMED.values()),
        )
    return None


def declares_normalized(source: Path) -> bool:
    """Whether embeddings have length 1: unless modules.json has no Normalize module."""
    found = modules(source)
    return not found or any(module.kind == "Normalize" for module in found)
