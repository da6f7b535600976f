"""The schemas as files in the cache, generated once per Kubernetes version."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import yaml

from kubeschemas import convert
from toolbox.catalog import PROGRAMS, TOOLS_FOLDER
from toolbox.paths import cache_root

# kubeconform's template for the file of a kind.
TEMPLATE = "{{ .ResourceKind }}{{ .KindSuffix }}.json"


def kubernetes_schemas() -> Path:
    """The folder with a schema for every kind of the Kubernetes version in tools/go.mod."""
    recipe = hashlib.sha256(Path(convert.__file__).read_bytes()).hexdigest()[:12]
    folder = cache_root() / "schemas" / f"kubernetes-{PROGRAMS['kube-apiserver'].version()}-{recipe}"
    if not folder.is_dir():
        module = subprocess.run(
            ["go", "mod", "download", "-json", "k8s.io/kubernetes"],
            cwd=TOOLS_FOLDER,
            check=True,
            capture_output=True,
            text=True,
        )
        swagger = Path(json.loads(module.stdout)["Dir"]) / "api" / "openapi-spec" / "swagger.json"
        _write(folder, convert.kinds(json.loads(swagger.read_text(encoding="utf-8"))))
    return folder


def custom_resource_schemas(crd: Path, folder: Path) -> Path:
    """Writes the schemas of a CustomResourceDefinition's file into `folder` and returns the folder."""
    _write(folder, convert.custom_resource(yaml.safe_load(crd.read_text(encoding="utf-8"))))
    return folder


def _write(folder: Path, schemas: Iterable[tuple[str, convert.Schema]]) -> None:
    """Write all files or none: an existing folder is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    for name, schema in schemas:
        (partial / name).write_text(json.dumps(schema), encoding="utf-8")
    try:
        partial.rename(folder)
    except OSError:
        # Another process was faster; its files are the same.
        for path in partial.iterdir():
            path.unlink()
        partial.rmdir()
