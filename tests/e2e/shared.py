"""The cluster that all end-to-end tests share: installed once, watched by one Prometheus, known by one file.

`make e2e` starts it and tells the runs of pytest by `$OCTAVO_E2E_CLUSTER`, the path of that file. A run of pytest by
hand, with one process, starts its own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from demo.cluster import Cluster
from demo.install import SYSTEM, Installation, install
from localcluster import audit, cli, kube, record
from localcluster.pki import Pki
from monitoring.discovery import discovery
from monitoring.prometheus import Prometheus, prometheus
from toolbox import ToolError
from toolbox.progress import Progress

# Not the demonstration's cluster: both may run at the same time, and two runs of the tests under two names.
NAME = os.environ.get("OCTAVO_E2E_NAME", "octavo-e2e")
FILE = "OCTAVO_E2E_CLUSTER"
_ALERTS = Path(__file__).resolve().parents[2] / "charts" / "octavo" / "files" / "alerts.yaml"
_SPACES = (SYSTEM, "team-a", "team-b")


@dataclass(frozen=True, slots=True)
class Shared:
    """The cluster, and the address of the Prometheus that watches it since `since` (Unix time); empty without one."""

    installation: Installation
    prometheus: str
    since: float

    def save(self, file: Path) -> None:
        """Writes everything to `file`."""
        file.write_text(json.dumps(dataclasses.asdict(self), default=str), encoding="utf-8")


def load(file: Path) -> Shared:
    """What `Shared.save` wrote."""
    found = json.loads(file.read_text(encoding="utf-8"))
    inside = found["installation"]
    paths = {name: Path(inside["cluster"][name]) for name in ("kubectl", "helm", "kubeconfig")}
    cluster = Cluster(**{**inside["cluster"], **paths})
    return Shared(Installation(**{**inside, "cluster": cluster}), found["prometheus"], found["since"])


@contextmanager
def running() -> Iterator[Shared]:
    """The cluster, taken down afterwards; with $OCTAVO_E2E_KEEP it stays, and is used when it is there."""
    keep = "OCTAVO_E2E_KEEP" in os.environ
    accounts = [f"system:serviceaccount:{space}:octavo-{part}" for space in _SPACES for part in ("operator", "gateway")]
    with ExitStack() as stack:
        if not keep:
            cli.main(["down", "--name", NAME])
            stack.callback(cli.main, ["down", "--name", NAME])
        made = install(NAME, None, Progress(), audit_policy=audit.policy(accounts), watched=True)
        # Pods of several tests run side by side: they ask for so little that all fit on the node.
        made = dataclasses.replace(made, example=made.example.replace("cpu: 500m", "cpu: 50m"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="octavo-e2e-")))
        yield Shared(made, stack.enter_context(_watching(folder)), time.time())


@contextmanager
def _watching(folder: Path) -> Iterator[str]:
    """Address of a Prometheus that scrapes the cluster's pods; empty where none can be installed.

    Its alerts are the chart's, except that they do not wait, nor for a request to be held for a minute.
    """
    rules = folder / "alerts.yaml"
    rules.write_text(
        re.sub(r"\bfor: \w+", "for: 4s", _ALERTS.read_text()).replace("hold_seconds) > 60", "hold_seconds) > 5")
    )
    found = record.load(NAME)
    assert found is not None
    api = kube.connect(found.server, Pki(found.data / "pki"))
    with ExitStack() as stack:
        try:
            targets = stack.enter_context(discovery(api))
            address = stack.enter_context(prometheus(folder, targets, rules)).url
        except ToolError as error:
            print(f"WITHOUT PROMETHEUS: {error}", flush=True)
            address = ""
        yield address


def watched(shared: Shared) -> Prometheus | None:
    """The Prometheus that watches the cluster, or None without one."""
    return Prometheus(shared.prometheus) if shared.prometheus else None
