import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbox import build, deps
from toolbox.catalog import OWNER, TOOLS
from toolbox.images import ImageSpec
from toolbox.paths import cache_root, state_root
from toolbox.progress import Progress, duration


@given(st.lists(st.text(max_size=3), min_size=3, max_size=6), st.lists(st.text(max_size=3), min_size=3, max_size=6))
def test_builds_share_a_key_only_when_every_part_is_equal(one: list[str], two: list[str]) -> None:
    keys = [build.cache_key([each.encode() for each in rest], a, b, c) for a, b, c, *rest in (one, two)]
    assert (keys[0] == keys[1]) == (one == two)


def test_every_tool_has_a_version_and_a_complete_module() -> None:
    for tool in TOOLS.values():
        assert tool.version().startswith("v")
        assert (tool.folder / "go.sum").stat().st_size > 0
        assert "-s -w" in tool.ldflags()


def test_the_kubernetes_programs_carry_their_version() -> None:
    kubernetes = TOOLS["kubernetes"]
    assert f"gitVersion={kubernetes.version()}" in kubernetes.ldflags()
    assert "gitMajor=1 " in kubernetes.ldflags()


def test_ready_binaries_are_used_and_a_missing_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "kubelet").touch(mode=0o755)
    env = {"OCTAVO_KUBERNETES_BIN": str(tmp_path)}
    assert build.ready_binary("kubelet", env) == tmp_path / "kubelet"
    assert build.ready_binary("containerd", env) is None
    assert build.ready_binary("kubelet", {}) is None
    with pytest.raises(build.ToolError, match="no program kubectl"):
        build.ready_binary("kubectl", env)


def test_an_unknown_program_is_refused_with_the_known_ones() -> None:
    with pytest.raises(build.ToolError, match=r"known are .*kubectl"):
        build.program("minikube")
    assert len(OWNER) == 16


def test_the_folders_follow_the_environment(tmp_path: Path) -> None:
    assert cache_root({"OCTAVO_CACHE": str(tmp_path)}) == tmp_path
    assert cache_root({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "octavo"
    assert state_root({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "octavo"
    assert state_root({}) == Path.home().resolve() / ".local/state/octavo"


def test_a_missing_prerequisite_is_named_with_its_package() -> None:
    need = deps.Need("/nonexistent/bridge", "containernetworking-plugins", "pod networks")
    with pytest.raises(build.ToolError, match=r"pod networks[^$]*apt-get install --yes containernetworking-plugins"):
        deps.require([need, deps.Need("sh", "dash", "shell")])


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
    assert out.getvalue() == "✓ build etcd 0.0 s · 3 packages compiled\n✗ build kwok 0.0 s\n"


@pytest.mark.parametrize(("seconds", "text"), [(0.04, "0.0 s"), (9.9, "9.9 s"), (12.3, "12 s"), (185, "3 m 05 s")])
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text
