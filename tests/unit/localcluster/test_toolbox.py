import io
import json
import re
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbox import arm, build, deps, ready
from toolbox.catalog import CONTROL_PLANE, NODE, PROGRAMS, cost
from toolbox.cli import main
from toolbox.errors import ToolError
from toolbox.images import ImageSpec
from toolbox.paths import cache_root, state_root
from toolbox.progress import Progress, duration


@given(st.lists(st.text(max_size=3), min_size=3, max_size=6), st.lists(st.text(max_size=3), min_size=3, max_size=6))
def test_builds_share_a_key_only_when_every_part_is_equal(one: list[str], two: list[str]) -> None:
    keys = [build.cache_key([each.encode() for each in rest], a, b, c) for a, b, c, *rest in (one, two)]
    assert (keys[0] == keys[1]) == (one == two)


def test_every_program_has_a_version_and_is_linked_without_symbols() -> None:
    for program in PROGRAMS.values():
        assert program.version().startswith("v")
        assert program.ldflags().startswith("-s -w")
        assert all(path.is_file() for path in program.sources())


def test_the_kubernetes_programs_carry_their_version() -> None:
    flags = PROGRAMS["kube-apiserver"].ldflags()
    assert f"gitVersion={PROGRAMS['kube-apiserver'].version()}" in flags
    assert "gitMajor=1 " in flags


def test_what_a_node_and_a_control_plane_need_is_in_the_table_and_costs_what_its_programs_cost() -> None:
    assert set(CONTROL_PLANE) < set(NODE) < set(PROGRAMS)
    assert not {"kubeconform", "kwok", "fakegpu"} & set(NODE)
    assert cost(["etcd", "helm"]) == PROGRAMS["etcd"].cost + PROGRAMS["helm"].cost
    assert all(program.cost > 0 for program in PROGRAMS.values())


def test_programs_in_the_named_folder_are_used_and_a_missing_one_of_kubernetes_is_named(tmp_path: Path) -> None:
    (tmp_path / "kubelet").touch(mode=0o755)
    (tmp_path / "coredns").touch(mode=0o755)
    env = {"OCTAVO_KUBERNETES_BIN": str(tmp_path)}
    assert ready.named("kubelet", env) == tmp_path / "kubelet"
    assert ready.named("containerd", env) is None
    assert ready.named("coredns", env) is None
    assert ready.named("kubelet", {}) is None
    with pytest.raises(ToolError, match="no program kubectl"):
        ready.named("kubectl", env)


def script(folder: Path, name: str, body: str) -> Path:
    """A program that the search path `folder` has."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("kubectl", "Client Version: v{}\nKustomize Version: v5.0.0"),
        ("kubelet", "Kubernetes v{}"),
        ("helm", "v{}+gabc123"),
        ("etcd", "etcd Version: {}\nGit SHA: 1234567\nGo Version: go1.26.8"),
        ("containerd", "containerd github.com/containerd/containerd/v2 v{} 0123abc"),
        ("containerd-shim-runc-v2", "containerd-shim-runc-v2:\n  Version:  v{}\n  Revision: 1"),
        ("registry", "registry github.com/distribution/distribution/v3 v{}"),
    ],
)
def test_a_program_on_the_path_is_used_in_the_right_version_only(tmp_path: Path, name: str, answer: str) -> None:
    wanted = PROGRAMS[name].version().removeprefix("v")
    right, wrong, newer = (tmp_path / folder for folder in ("right", "wrong", "newer"))
    for folder, version in ((right, wanted), (wrong, "0.9.1"), (newer, f"{wanted}-rc.1")):
        folder.mkdir()
        script(folder, name, f"printf '{answer.format(version)}\\n'")
    assert ready.on_path(PROGRAMS[name], str(right)) == (right / name, "")
    found, reason = ready.on_path(PROGRAMS[name], str(wrong))
    assert (found, reason) == (None, f"{wrong / name} is version 0.9.1, not v{wanted}: not used")
    assert ready.on_path(PROGRAMS[name], str(newer))[0] is None
    assert ready.on_path(PROGRAMS[name], str(tmp_path)) == (None, "")


def test_a_program_that_says_no_version_and_one_that_must_be_ours_are_not_used(tmp_path: Path) -> None:
    version = PROGRAMS["helm"].version()
    helm = script(tmp_path, "helm", f"echo {version}; exit 1")
    script(tmp_path, "coredns", f"echo CoreDNS-{PROGRAMS['coredns'].version()}")
    assert ready.on_path(PROGRAMS["helm"], str(tmp_path)) == (
        None,
        f"{helm} is of no known version, not {version}: not used",
    )
    assert ready.on_path(PROGRAMS["coredns"], str(tmp_path)) == (None, "")


def test_the_path_is_noted_for_what_has_to_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "etcd", "echo etcd Version: 3.4.23")
    script(tmp_path, "helm", f"echo {PROGRAMS['helm'].version()}")
    monkeypatch.setattr(build, "go_version", lambda _: "go1.26.8")
    monkeypatch.setattr(build, "go_arch", lambda: "amd64")
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("OCTAVO_KUBERNETES_BIN", raising=False)
    out = io.StringIO()
    assert build.missing(["etcd", "helm", "ctr"], Progress(out)) == ["etcd", "ctr"]
    assert out.getvalue() == f"  {tmp_path}/etcd is version 3.4.23, not {PROGRAMS['etcd'].version()}: not used\n"
    # What was built goes first, so that a warm start asks nothing on PATH.
    build.cached("etcd").parent.mkdir(parents=True)
    build.cached("etcd").touch()
    assert build.missing(["etcd", "helm"], Progress(out)) == []


def test_an_unknown_program_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ToolError, match=r"known are .*kubectl"):
        build.program("minikube")


def test_the_folders_follow_the_environment(tmp_path: Path) -> None:
    assert cache_root({"OCTAVO_CACHE": str(tmp_path)}) == tmp_path
    assert cache_root({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "octavo"
    assert state_root({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "octavo"
    assert state_root({}) == Path.home().resolve() / ".local/state/octavo"


def test_a_missing_prerequisite_is_named_with_its_package() -> None:
    need = deps.Need("/nonexistent/bridge", "containernetworking-plugins", "pod networks")
    with pytest.raises(ToolError, match=r"pod networks[^$]*apt-get install --yes containernetworking-plugins"):
        deps.require([need, deps.Need("sh", "dash", "shell")])


def test_a_silent_mirror_does_not_hold_up_the_tests_that_are_skipped_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = tmp_path / "apt-get"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho no answer\nexit 100\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(deps, "ARM", (deps.Need("/nonexistent/compiler", "g++-aarch64-linux-gnu", "kernels"),))
    monkeypatch.setattr(deps.os, "geteuid", lambda: 0)
    assert main(["deps", "--install", "--arm", "compile"]) == 1
    asked = (tmp_path / "asked").read_text()
    assert "Acquire::http::Timeout=10" in asked
    assert "Acquire::Retries=0" in asked
    assert "apt-get update failed:\nno answer" in capsys.readouterr().err


@pytest.mark.parametrize(("use", "missing"), [("compile", []), ("run", ["qemu-user"])])
def test_only_running_the_kernels_for_arm_needs_the_emulator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], use: str, missing: list[str]
) -> None:
    monkeypatch.setattr(deps.Need, "met", lambda need: need.package != "qemu-user")
    assert main(["deps", "--arm", use]) == len(missing)
    errors = capsys.readouterr().err
    assert [name for name in ("qemu-user", "g++-aarch64-linux-gnu") if name in errors] == missing


def test_requirements_are_the_entries_of_the_lock_with_their_hashes() -> None:
    entry = "numpy==2 ; python_full_version < '3.12' \\\n    --hash=sha256:a"
    lock = f"# locked\n{entry}\nnumpy-x==1 \\\n    --hash=sha256:b\n"
    assert arm.requirements(lock, ["numpy"]) == entry
    with pytest.raises(ToolError, match="the lock has no absent"):
        arm.requirements(lock, ["numpy", "absent"])


def test_an_image_archive_holds_its_files_and_is_the_same_every_time(tmp_path: Path) -> None:
    image = ImageSpec("localhost/x:1", {"bin/x": (b"program", 0o755)}, ["/bin/x"], "amd64")
    image.write(tmp_path / "one.tar")
    image.write(tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as archive:
        manifest = json.load(archive.extractfile("manifest.json") or io.BytesIO())
        config = json.load(archive.extractfile(manifest[0]["Config"]) or io.BytesIO())
        layer = (archive.extractfile(manifest[0]["Layers"][0]) or io.BytesIO()).read()
    assert manifest[0]["RepoTags"] == ["localhost/x:1"]
    assert config["config"]["Entrypoint"] == ["/bin/x"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as files:
        assert [(entry.name, entry.mode, entry.uid) for entry in files] == [("bin", 0o755, 0), ("bin/x", 0o755, 0)]


def test_progress_in_a_log_has_one_line_per_finished_step() -> None:
    out = io.StringIO()
    progress = Progress(out)
    with progress.step("build etcd") as step:
        step.detail = "3 packages compiled"
    with pytest.raises(ValueError, match="no"), progress.step("build kwok"):
        raise ValueError("no")
    lines = re.sub(r"\d+\.\d s", "T", out.getvalue())
    assert lines == "✓ build etcd T · 3 packages compiled\n✗ build kwok T\n"


@pytest.mark.parametrize(("seconds", "text"), [(0.04, "0.0 s"), (9.9, "9.9 s"), (12.3, "12 s"), (185, "3 m 05 s")])
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text
