"""The control plane for tests: it answers, it stops, and it leaves nothing, whatever happens to who started it."""

import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest
from tests.support.waiting import eventually

from localcluster import ClusterError, ControlPlane, control_plane, shared_control_plane

TOOLS = Path(__file__).resolve().parents[3] / "tools"


def processes_of(data: Path) -> list[psutil.Process]:
    every = psutil.process_iter(["cmdline"])
    return [each for each in every if any(str(data) in argument for argument in each.info["cmdline"] or ())]


def get(plane: ControlPlane, path: str) -> dict[str, object]:
    context = ssl.create_default_context(cafile=str(plane.ca))
    context.load_cert_chain(str(plane.certificate), str(plane.key))
    with urllib.request.urlopen(plane.server + path, context=context, timeout=10) as answer:  # noqa: S310
        return dict(json.load(answer))


def test_it_answers_and_leaves_nothing() -> None:
    with control_plane() as plane:
        assert get(plane, "/version")["gitVersion"] == "v1.36.3"
        assert get(plane, "/api/v1/namespaces/default")["kind"] == "Namespace"
        assert json.loads(plane.kubeconfig.read_text())["clusters"][0]["cluster"]["server"] == plane.server
        assert plane.kubeconfig.stat().st_mode & 0o077 == 0
    assert not plane.data.exists()
    assert processes_of(plane.data) == []


def test_two_run_side_by_side() -> None:
    with control_plane() as one, control_plane() as two:
        assert one.server != two.server
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            get(ControlPlane(two.server, one.data), "/version")


def test_without_a_certificate_nothing_is_answered() -> None:
    with control_plane() as plane:
        context = ssl.create_default_context(cafile=str(plane.ca))
        with pytest.raises(OSError, match="401"):
            urllib.request.urlopen(f"{plane.server}/api/v1/secrets", context=context, timeout=10)  # noqa: S310


def test_a_killed_apiserver_comes_back() -> None:
    with control_plane() as plane:
        [server] = [process for process in processes_of(plane.data) if process.name() == "kube-apiserver"]
        server.kill()
        eventually(lambda: any(p.name() == "kube-apiserver" for p in processes_of(plane.data)))
        eventually(lambda: _answers(plane))


def _answers(plane: ControlPlane) -> bool:
    try:
        return get(plane, "/version")["major"] == "1"
    except OSError:
        return False


def test_it_goes_with_its_starter_even_when_that_is_killed() -> None:
    script = "from localcluster import control_plane\nwith control_plane() as p: print(p.data, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(TOOLS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        assert starter.stdout is not None
        data = Path(starter.stdout.readline().strip())
        assert len(processes_of(data)) == 3
        starter.send_signal(signal.SIGKILL)
    eventually(lambda: not data.exists() and not processes_of(data))


def test_it_is_shared_until_the_last_one_leaves_even_by_a_kill(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from localcluster import shared_control_plane\n"
        "with shared_control_plane(pathlib.Path(sys.argv[1])) as p: print(p.server, flush=True); input()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(TOOLS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        server = other.stdout.readline().strip()
        with shared_control_plane(tmp_path) as plane:
            assert plane.server == server
            other.send_signal(signal.SIGKILL)
            other.wait()
            assert get(plane, "/version")["major"] == "1"
    eventually(lambda: not plane.data.exists() and not processes_of(plane.data))
    with shared_control_plane(tmp_path) as again:
        assert get(again, "/version")["major"] == "1"


def test_a_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_KUBERNETES_BIN", str(tmp_path))
    with pytest.raises(ClusterError, match="no program kube-apiserver"), control_plane():
        pass


def test_by_hand_a_second_up_is_refused_and_down_removes_all(tmp_path: Path) -> None:
    env = {**os.environ, "OCTAVO_STATE": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(TOOLS / "localcluster"), *arguments, "--name", "t"]
        return subprocess.run(command, env=env, check=False, capture_output=True, text=True)

    try:
        assert run("up", "--control-plane-only").returncode == 0
        again = run("up", "--control-plane-only")
        assert (again.returncode, "already up" in again.stderr) == (1, True)
        assert "kube-apiserver" in run("status").stdout
        assert Path(run("kubeconfig").stdout.strip()).is_file()
        assert run("registry").returncode == 1
    finally:
        assert run("down").returncode == 0
    assert list((tmp_path / "clusters").iterdir()) == []
    assert processes_of(tmp_path) == []
