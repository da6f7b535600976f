"""Folders for built programs, images and clusters, outside the repository."""

import os
from collections.abc import Mapping
from pathlib import Path


def cache_root(env: Mapping[str, str] = os.environ) -> Path:
    """The folder for rebuildable files: $OCTAVO_CACHE, else $XDG_CACHE_HOME/octavo, else ~/.cache/octavo."""
    if own := env.get("OCTAVO_CACHE"):
        return Path(own).expanduser().resolve()
    base = env.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base).resolve() / "octavo"


def state_root(env: Mapping[str, str] = os.environ) -> Path:
    """The folder for running clusters: $OCTAVO_STATE, else $XDG_STATE_HOME/octavo, else ~/.local/state/octavo."""
    if own := env.get("OCTAVO_STATE"):
        return Path(own).expanduser().resolve()
    base = env.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base).resolve() / "octavo"
