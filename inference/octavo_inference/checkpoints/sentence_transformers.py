"""The pooling that a checkpoint of sentence-transformers declares, in modules.json and the folder of its pooling."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from octavo_inference.checkpoints.jsonfile import optional_json
from octavo_inference.config.engine import PoolingName

log = logging.getLogger(__name__)

_MODES: dict[str, PoolingName] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}


def declared_pooling(source: Path) -> PoolingName | None:
    """The declared pooling of a model, given as its folder or as a file in it. None if there is none or another."""
    folder = source.parent if source.is_file() else source
    for place in _pooling_folders(folder / "modules.json"):
        path = folder / place / "config.json"
        modes = [name for name, value in optional_json(path).items() if name.startswith("pooling_mode_") and value]
        if len(modes) == 1 and modes[0] in _MODES:
            return _MODES[modes[0]]
        log.warning(
            "%s: pooling %s is not supported; supported: mean, last", path, ", ".join(modes) or "without a mode"
        )
    return None


def _pooling_folders(path: Path) -> list[str]:
    try:
        modules: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if not isinstance(modules, list):
        return []
    found = [module for module in modules if isinstance(module, dict) and str(module.get("type")).endswith(".Pooling")]
    # A path of the checkpoint must not lead out of its folder.
    return [place for module in found if (place := str(module.get("path"))) == Path(place).name]
