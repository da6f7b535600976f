"""Helm, kubectl, and an API server of the chart's own: others have the CRD in theirs, which Helm would not adopt."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster import ClusterError, ControlPlane, control_plane
from toolbox import ToolError, program

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "octavo"
SYSTEM = "octavo-system"

Object = dict[str, Any]
Run = Callable[..., str]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Output of a program; fails the test with what it said."""
    home = str(tmp_path_factory.mktemp("helm"))
    base = dict(os.environ) | {"HELM_CACHE_HOME": home, "HELM_CONFIG_HOME": home, "HELM_DATA_HOME": home}

    def call(name: str, *arguments: str | Path, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        try:
            command = [str(program(name)), *map(str, arguments)]
        except ToolError as error:
            pytest.skip(f"{name} cannot be built: {error}")
        environment = base | ({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})
        done = subprocess.run(command, env=environment, input=stdin, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AssertionError(f"{name} {' '.join(map(str, arguments))}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    return call


@pytest.fixture(scope="session")
def render(run: Run) -> Callable[..., list[Object]]:
    """The chart's objects for `--set` arguments."""

    def template(*values: str) -> list[Object]:
        flags = [part for value in values for part in ("--set-json" if "=[" in value else "--set", value)]
        text = run("helm", "template", "octavo", CHART, "--namespace", SYSTEM, *flags)
        return [document for document in yaml.safe_load_all(text) if document]

    return template


@pytest.fixture(scope="module")
def api() -> Iterator[ControlPlane]:
    """etcd and kube-apiserver without our CRD."""
    try:
        with control_plane() as running:
            yield running
    except ClusterError as error:
        pytest.skip(f"no control plane: {error}")
