"""A real node: it runs pods, keeps clusters apart, and leaves nothing of itself on the machine."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.waiting import eventually

from localcluster.addresses import Addresses
from localcluster.down import cgroup_name
from localcluster.record import Record
from toolbox import program
from toolbox.build import go_arch
from toolbox.images import ImageSpec

TOOLS = Path(__file__).resolve().parents[3] / "tools"
BUSYBOX = "localhost:5000/busybox:test"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a node needs root: run the end-to-end tests with sudo"),
]


@dataclass(frozen=True)
class Machine:
    """Runs the tool with a state folder of its own, so that other clusters of this machine are never met."""

    state: Path

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(TOOLS / "localcluster"), *arguments]

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "OCTAVO_STATE": str(self.state)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*arguments), env=self.env, check=False, capture_output=True, text=True)

    def up(self, name: str) -> "Cluster":
        started = self.run("up", "--name", name)
        assert started.returncode == 0, started.stderr
        return Cluster(self, name)

    def record(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.state / "clusters" / f"{name}.json").read_text()))


@dataclass(frozen=True)
class Cluster:
    """A running cluster as its user sees it."""

    machine: Machine
    name: str

    @property
    def plan(self) -> Addresses:
        return Addresses(self.machine.record(self.name)["network"])

    def kubectl(self, *arguments: str, manifest: object = None) -> subprocess.CompletedProcess[str]:
        kubeconfig = self.machine.run("kubeconfig", "--name", self.name).stdout.strip()
        command = [str(program("kubectl")), "--kubeconfig", kubeconfig, *arguments]
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            input=None if manifest is None else json.dumps(manifest),
        )

    def apply(self, manifest: object) -> None:
        applied = self.kubectl("apply", "--server-side", "-f", "-", manifest=manifest)
        assert applied.returncode == 0, applied.stderr

    def value(self, kind: str, name: str, path: str) -> str:
        return self.kubectl("get", kind, name, "-o", f"jsonpath={path}").stdout

    def node_ready(self) -> bool:
        conditions = self.value("node", "node-1", '{.status.conditions[?(@.type=="Ready")].status}')
        return conditions == "True"


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    # Short, because socket names below it must stay short.
    state = Path(tempfile.mkdtemp(prefix="octavo-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, state, ignore_errors=True)
        made = Machine(state)
        yield made
        for record in (state / "clusters").glob("*.json"):
            made.run("down", "--purge", "--name", record.stem)


@pytest.fixture(scope="module")
def cluster(machine: Machine) -> Iterator[Cluster]:
    made = machine.up("test-a")
    push_busybox(made.plan.registry)
    yield made
    removed = machine.run("down", "--purge", "--name", "test-a")
    assert removed.returncode == 0, removed.stderr


def push_busybox(registry: str) -> None:
    """Busybox from the host as an image, pushed as users push theirs."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "busybox.tar"
        content = Path("/bin/busybox").read_bytes()
        names = ("sh", "httpd", "nslookup", "wget", "sleep")
        files = {f"bin/{name}": (content, 0o755) for name in ("busybox", *names)}
        ImageSpec("busybox", files, ["/bin/sh"], go_arch()).write(archive)
        storage = ["--root", f"{scratch}/root", "--runroot", f"{scratch}/run", "--storage-driver", "vfs"]
        subprocess.run(
            [
                "buildah",
                *storage,
                "push",
                "--tls-verify=false",
                _pull(storage, archive),
                f"docker://{registry}/busybox:test",
            ],
            check=True,
            capture_output=True,
        )


def _pull(storage: list[str], archive: Path) -> str:
    pulled = subprocess.run(
        ["buildah", *storage, "pull", f"docker-archive:{archive}"], check=True, capture_output=True, text=True
    )
    return pulled.stdout.strip().splitlines()[-1]


def pod(name: str, command: str, **labels: str) -> dict[str, object]:
    container = {
        "name": "main",
        "image": BUSYBOX,
        "command": ["sh", "-c", command],
        "resources": {"limits": {"memory": "32Mi", "cpu": "200m"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}:8080/", timeout=1) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def test_a_pod_from_the_registry_runs_resolves_names_and_its_log_is_read(cluster: Cluster) -> None:
    lookup = "nslookup kubernetes.default.svc.cluster.local && echo resolved; id -u; nslookup example.com || echo no"
    cluster.apply(pod("lookup", lookup))
    eventually(lambda: cluster.value("pod", "lookup", "{.status.phase}") == "Succeeded")
    log = cluster.kubectl("logs", "lookup").stdout
    assert cluster.plan.api_service in log
    assert "resolved\n65532\n" in log
    assert "NXDOMAIN" in log.split("65532")[1]
    assert log.rstrip().endswith("no")


def test_network_policies_are_enforced(cluster: Cluster) -> None:
    cluster.apply(pod("web", "cd /; exec httpd -f -p 8080", app="web"))
    eventually(lambda: answers(cluster.value("pod", "web", "{.status.podIP}") or "127.0.0.1"))
    address = cluster.value("pod", "web", "{.status.podIP}")
    policy: dict[str, Any] = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "web"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]},
    }
    cluster.apply(policy)
    eventually(lambda: not answers(address))
    policy["spec"]["ingress"] = [
        {"from": [{"ipBlock": {"cidr": f"{cluster.plan.host}/32"}}], "ports": [{"port": 8080}]}
    ]
    cluster.apply(policy)
    eventually(lambda: answers(address))


def test_a_second_up_of_the_same_name_is_refused_and_changes_nothing(cluster: Cluster) -> None:
    again = cluster.machine.run("up", "--name", cluster.name)
    assert again.returncode == 1
    assert f"cluster {cluster.name} is already up" in again.stderr
    assert cluster.node_ready()


def test_status_shows_the_parts(cluster: Cluster) -> None:
    shown = cluster.machine.run("status", "--name", cluster.name)
    assert shown.returncode == 0, shown.stdout
    for word in ("kubelet", "containerd", "etcd", "network-policy", cluster.plan.registry, "(Ready)"):
        assert word in shown.stdout


def test_a_killed_kubelet_comes_back_and_pods_stay(cluster: Cluster) -> None:
    started = cluster.value("pod", "web", "{.status.containerStatuses[0].containerID}")
    [kubelet] = [each for each in processes_of(data_of(cluster)) if each.name() == "kubelet"]
    kubelet.kill()
    eventually(lambda: "restarted 1 times" in cluster.machine.run("status", "--name", cluster.name).stdout)
    eventually(cluster.node_ready)
    assert cluster.value("pod", "web", "{.status.containerStatuses[0].containerID}") == started


def test_two_clusters_run_side_by_side_and_one_goes_without_the_other(cluster: Cluster) -> None:
    other = cluster.machine.up("test-b")
    data, plan = data_of(other), other.plan
    assert plan.network != cluster.plan.network
    assert other.node_ready()
    assert cluster.node_ready()
    assert other.kubectl("get", "pod", "web").returncode == 1
    assert len(remains(cluster.machine.state, "test-b", data, plan)) > 10, "the search finds a running cluster"
    assert cluster.machine.run("down", "--purge", "--name", "test-b").returncode == 0
    assert remains(cluster.machine.state, "test-b", data, plan) == []
    assert cluster.node_ready()


@pytest.mark.parametrize("stage", ["keys and configuration", "namespaces and network", "images for pods", "node Ready"])
def test_nothing_stays_of_a_cluster_whose_start_was_killed(machine: Machine, stage: str) -> None:
    host_folders = [path.exists() for path in _HOST_FOLDERS]
    with subprocess.Popen(machine.command("up", "--name", "test-c"), env=machine.env, stderr=subprocess.PIPE) as tool:
        assert tool.stderr is not None
        while stage.encode() not in tool.stderr.readline():
            assert tool.poll() is None
        tool.send_signal(signal.SIGKILL)
    record = machine.record("test-c")
    removed = machine.run("down", "--purge", "--name", "test-c")
    assert removed.returncode == 0, removed.stderr
    assert remains(machine.state, "test-c", Path(record["data"]), Addresses(record["network"])) == []
    assert [path.exists() for path in _HOST_FOLDERS] == host_folders


def test_up_cleans_what_a_killed_start_left_and_down_leaves_nothing(machine: Machine) -> None:
    with subprocess.Popen(machine.command("up", "--name", "test-c"), env=machine.env, stderr=subprocess.PIPE) as tool:
        assert tool.stderr is not None
        while b"API server" not in tool.stderr.readline():
            assert tool.poll() is None
        tool.send_signal(signal.SIGKILL)
    made = machine.up("test-c")
    data, plan = data_of(made), made.plan
    assert made.node_ready()
    assert machine.run("down", "--purge", "--name", "test-c").returncode == 0
    assert remains(machine.state, "test-c", data, plan) == []


_HOST_FOLDERS = [Path("/var/lib/kubelet"), Path("/var/lib/cni"), Path("/var/log/containers"), Path("/opt/containerd")]


def data_of(cluster: Cluster) -> Path:
    return Path(cluster.machine.record(cluster.name)["data"])


def processes_of(data: Path) -> list[psutil.Process]:
    every = psutil.process_iter(["cmdline"])
    return [each for each in every if any(f"{data}/" in argument for argument in each.info["cmdline"] or ())]


def remains(state: Path, name: str, data: Path, plan: Addresses) -> list[str]:
    """Everything on the machine that still belongs to the cluster, by name, data folder or address."""

    def lines(*command: str) -> list[str]:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

    own = f"10.{plan.network}."
    found = [line for line in lines("ip", "-oneline", "link") if plan.link in line]
    found += [line for line in lines("ip", "-4", "route", "show", "table", "all") if own in line]
    found += [line for line in lines("iptables-save") if own in line or "KUBE-" in line]
    found += [line for line in lines("nft", "list", "tables") if "octavo" in line]
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if f"{data}/" in line]
    # Not by glob: control groups of other clusters go meanwhile.
    groups = [str(Path(folder) / group) for folder, below, _ in os.walk("/sys/fs/cgroup") for group in below]
    own_group = cgroup_name(Record(name, data, plan.network, server=""))
    found += [group for group in groups if f"/{own_group}" in group]
    found += [str(process) for process in processes_of(data)]
    found += [str(path) for path in (state / "clusters").glob(f"{name}*")]
    return found + ([str(data)] if data.exists() else [])
