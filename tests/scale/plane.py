"""The cluster: etcd, API server, controllers and scheduler as they are, nodes and pods that kwok plays."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from localcluster import ControlPlane, control_plane
from toolbox.build import program

STAGES = Path(__file__).with_name("stages.yaml")
# Pods have addresses of this network, which the network namespace of the run takes for its own.
POD_NETWORK = "10.128.0.0/9"
# Nobody reads what the others write: endpoints, namespaces' ServiceAccounts, volumes.
CONTROLLERS = (
    "deployment-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "job-controller",
    "node-lifecycle-controller",
    "replicaset-controller",
)


@contextmanager
def cluster() -> Iterator[tuple[ControlPlane, Path]]:
    """A control plane with controllers, scheduler and kwok, and the folder of their logs."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="octavo-scale-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        plane = stack.enter_context(control_plane())
        for name, command in _commands(plane, folder).items():
            # In a cluster they have machines of their own: here they give way to the API server and the operator.
            process = start(["nice", "-n", "5", *command], folder / f"{name}.log")
            stack.callback(end, process)
        yield plane, folder


def start(command: list[str], log: Path, **more: object) -> subprocess.Popen[bytes]:
    """A process that dies with this one."""
    with log.open("ab") as out:
        whole = ["setpriv", "--pdeathsig", "KILL", "--", *command]
        return subprocess.Popen(whole, stdin=subprocess.DEVNULL, stdout=out, stderr=out, **more)


def end(process: subprocess.Popen[bytes]) -> None:
    """At once: nothing of it is worth keeping."""
    if process.poll() is None:
        process.kill()
        process.wait()


def _commands(plane: ControlPlane, folder: Path) -> dict[str, list[str]]:
    # As administrator: API Priority and Fairness lets them pass, so that only the operator's own share is measured.
    kubeconfig = str(plane.kubeconfig)
    connection = {"kubeconfig": kubeconfig, "qps": 2000, "burst": 4000}
    scheduler = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": connection,
        "leaderElection": {"leaderElect": False},
        # A tenth of the nodes is looked at for each pod: all are alike.
        "percentageOfNodesToScore": 10,
    }
    (folder / "scheduler.yaml").write_text(json.dumps(scheduler))
    stages = [yaml.safe_dump(stage) for stage in yaml.safe_load_all(STAGES.read_text())]
    (folder / "stages.yaml").write_text("---\n".join(stages))
    return {
        "kube-controller-manager": [
            str(program("kube-controller-manager")),
            f"--kubeconfig={kubeconfig}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--controllers={','.join(CONTROLLERS)}",
            # The nodes have no heartbeats.
            "--node-monitor-grace-period=24h",
            "--kube-api-qps=2000",
            "--kube-api-burst=4000",
            "--concurrent-deployment-syncs=10",
            "--concurrent-replicaset-syncs=10",
            "--concurrent-job-syncs=10",
        ],
        "kube-scheduler": [
            str(program("kube-scheduler")),
            f"--config={folder / 'scheduler.yaml'}",
            "--bind-address=127.0.0.1",
        ],
        "kwok": [
            str(program("kwok")),
            f"--config={folder / 'stages.yaml'}",
            f"--kubeconfig={kubeconfig}",
            "--manage-all-nodes=true",
            f"--cidr={POD_NETWORK}",
            "--node-ip=127.0.0.1",
            "--node-lease-duration-seconds=7200",
            "-v=ERROR",
        ],
        "pods": [sys.executable, str(Path(__file__).with_name("pods.py"))],
    }
