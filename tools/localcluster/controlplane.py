"""Only etcd and kube-apiserver, on loopback, without root: the control plane of integration tests."""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from localcluster import components, kube, pki, supervisor
from localcluster.errors import ClusterError
from toolbox import deps
from toolbox.build import ensure
from toolbox.catalog import CONTROL_PLANE, TOOLS_FOLDER
from toolbox.errors import ToolError

CONFIG_FILE = "supervisor.json"
_END_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running control plane, and the credentials of a cluster administrator (group system:masters)."""

    server: str
    data: Path

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig with embedded certificates."""
        return self.data / "admin.kubeconfig"

    @property
    def ca(self) -> Path:
        """Certificate authority of the server, PEM."""
        return self.data / "pki" / "ca.crt"

    @property
    def certificate(self) -> Path:
        """Client certificate, PEM."""
        return self.data / "pki" / "admin.crt"

    @property
    def key(self) -> Path:
        """Client key, PEM."""
        return self.data / "pki" / "admin.key"


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """A private control plane in a temporary folder; removed after the block, and also if this process is killed.

    No controller manager runs: no garbage collection, no default ServiceAccounts, namespaces stay Terminating.
    Raises ClusterError, also when a program is missing.
    """
    data = Path(tempfile.mkdtemp(prefix="octavo-control-plane-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, data, ignore_errors=True)
        try:
            process = launch(data, lifeline=subprocess.PIPE)
        except ToolError as error:
            raise ClusterError(str(error)) from error
        stack.callback(_end, process)
        yield wait_ready(data, process)


@contextmanager
def shared_control_plane(folder: Path) -> Iterator[ControlPlane]:
    """One control plane for all processes with the same `folder`: the first one starts it, it ends after the last one.

    Its lifeline is a named pipe. Each process keeps the write end open, so the supervisor reads end-of-file when the
    last process has left the block or died. Raises ClusterError, also when a program is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data, lifeline = folder / "control-plane", folder / "lifeline"
    with ExitStack() as stack:
        users = stack.enter_context((folder / "users").open("w"))
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            hold = _start_shared(data, lifeline) if _alone(users) else os.open(lifeline, os.O_WRONLY)
            stack.callback(os.close, hold)
            fcntl.flock(users, fcntl.LOCK_SH)
        yield _plane(data)


def _alone(users: IO[str]) -> bool:
    """True if no other process holds the lock file of the shared control plane."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start_shared(data: Path, lifeline: Path) -> int:
    """Starts a control plane that runs while `lifeline` has writers; returns the descriptor of the first one."""
    end = time.monotonic() + _END_SECONDS
    while data.exists() and time.monotonic() < end:  # the previous control plane has not ended yet
        time.sleep(0.05)
    shutil.rmtree(data, ignore_errors=True)
    lifeline.unlink(missing_ok=True)
    os.mkfifo(lifeline)
    # Without O_NONBLOCK opening either end would block until the other is open.
    reader = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
    hold = os.open(lifeline, os.O_WRONLY)
    os.set_blocking(reader, True)
    try:
        wait_ready(data, launch(data, lifeline=reader))
    except (ToolError, ClusterError) as error:
        os.close(hold)
        raise ClusterError(str(error)) from error
    finally:
        os.close(reader)
    return hold


def launch(data: Path, *, lifeline: int | None) -> subprocess.Popen[bytes]:
    """Writes keys and configuration below `data` and starts the supervisor; raises ToolError, ClusterError.

    `lifeline` is `subprocess.PIPE` or the read end of a pipe: the supervisor ends, and removes `data`, when every
    writer has closed it or died. With None it runs until SIGTERM or SIGINT.
    """
    deps.require(deps.CONTROL_PLANE)
    programs = dict(zip(CONTROL_PLANE, ensure(CONTROL_PLANE), strict=True))
    client_port, peer_port, port = _free_ports(3)
    server = f"https://127.0.0.1:{port}"
    (data / "log").mkdir(parents=True, exist_ok=True)
    keys = pki.create(
        data / "pki",
        {"apiserver": ("/CN=kube-apiserver", ("IP:127.0.0.1", "DNS:localhost", "DNS:kubernetes.default.svc"))},
        {"admin": "/O=system:masters/CN=admin"},
    )
    pki.write_kubeconfig(data / "admin.kubeconfig", keys, "admin", server, "octavo-control-plane")
    settings = components.ApiServer("127.0.0.1", port, client_port, "10.0.0.0/24")
    commands = {
        "etcd": components.etcd(programs["etcd"], data, client_port, peer_port),
        "kube-apiserver": [
            *components.kube_apiserver(programs["kube-apiserver"], keys, settings),
            # Without controllers no ServiceAccount exists that pods could use, and loopback is not a valid endpoint.
            "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none",
        ],
    }
    config = data / CONFIG_FILE
    config.write_text(
        json.dumps({"data": str(data), "server": server, "lifeline": lifeline is not None, "commands": commands}),
        encoding="utf-8",
    )
    with (data / "log" / "supervisor.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "localcluster.supervisor", str(config)],
            cwd=data,
            env={**os.environ, "PYTHONPATH": str(TOOLS_FOLDER)},
            stdin=subprocess.DEVNULL if lifeline is None else lifeline,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def wait_ready(data: Path, process: subprocess.Popen[bytes]) -> ControlPlane:
    """Waits until the API server is ready; raises ClusterError with the log of what failed."""
    plane = _plane(data)
    api = kube.connect(plane.server, pki.Pki(data / "pki"))

    def failed() -> str | None:
        if process.poll() is not None:
            return f"the supervisor exited:\n{supervisor.log_tail(data, 'supervisor')}"
        return supervisor.crash_report(data)

    kube.wait("API server", api.ready, 60, failed)
    return plane


def _plane(data: Path) -> ControlPlane:
    return ControlPlane(json.loads((data / CONFIG_FILE).read_text(encoding="utf-8"))["server"], data)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
