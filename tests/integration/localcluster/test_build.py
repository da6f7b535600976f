"""The toolbox with a real Go compiler and a module of one file."""

import subprocess
import threading
from pathlib import Path

import pytest

from toolbox import ToolError, build, catalog
from toolbox.catalog import Program

HELLO = 'package main\n\nvar version = "none"\n\nfunc main() { print(version) }\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Go module with two programs, hello and bye, in the place of tools/."""
    folder = tmp_path / "tools"
    for name in ("hello", "bye"):
        (folder / name).mkdir(parents=True)
        (folder / name / "main.go").write_text(HELLO)
        program = Program(
            name, f"octavo.dev/tools/{name}", "// example.com/hello", 1, "-X main.version={version}", ("-v",)
        )
        monkeypatch.setitem(catalog.PROGRAMS, name, program)
    (folder / "go.mod").write_text("module octavo.dev/tools\n\ngo 1.21\n\n// example.com/hello v1.2.3\n")
    (folder / "go.sum").touch()
    monkeypatch.setattr(catalog, "TOOLS_FOLDER", folder)
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OCTAVO_KUBERNETES_BIN", raising=False)
    return folder


def test_a_program_is_built_once_with_its_version(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = build.program("hello")
    assert subprocess.run([path], check=True, capture_output=True, text=True).stderr == "v1.2.3"
    assert "✓ build hello v1.2.3" in capfd.readouterr().err
    assert build.program("hello") == path
    assert capfd.readouterr().err == ""


def test_only_what_is_asked_for_is_built_and_together(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build.program("hello")
    assert build.missing(["hello", "bye"]) == ["bye"]
    (folder / "go.sum").write_text("\n")
    capfd.readouterr()
    assert [path.name for path in build.ensure(["hello", "bye"])] == ["hello", "bye"]
    assert [line for line in capfd.readouterr().err.splitlines() if "build 2 programs" in line]


def test_another_go_mod_and_another_file_of_ours_are_another_build(folder: Path) -> None:
    hello, bye = build.cached("hello"), build.cached("bye")
    (folder / "bye" / "main.go").write_text(HELLO + "\n// changed\n")
    assert build.cached("hello") == hello
    assert build.cached("bye") != bye
    (folder / "go.mod").write_text((folder / "go.mod").read_text() + "\n// changed\n")
    assert build.cached("hello") != hello


def test_a_failing_build_says_why_and_leaves_nothing_to_be_taken_for_a_program(folder: Path, tmp_path: Path) -> None:
    (folder / "hello" / "main.go").write_text("package main\n\nfunc main() { nonsense() }\n")
    with pytest.raises(ToolError, match=r"building hello failed[^$]*undefined: nonsense"):
        build.program("hello")
    assert [path.name for path in (tmp_path / "cache" / "tools").iterdir()] == ["lock"]


def test_two_at_once_build_once(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    threads = [threading.Thread(target=build.program, args=("hello",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = capfd.readouterr().err.splitlines()
    assert sum("packages compiled" in line for line in lines) <= 1
    assert build.program("hello").is_file()


def test_a_go_that_is_too_old_is_named(folder: Path) -> None:
    (folder / "go.mod").write_text("module octavo.dev/tools\n\ngo 1.99\n")
    build.go_version.cache_clear()
    with pytest.raises(ToolError, match=r"1\.99"):
        build.go_version(folder)
