"""The toolbox with a real Go compiler and a module of one file."""

import subprocess
import threading
from pathlib import Path

import pytest

from toolbox import build, catalog
from toolbox.catalog import Tool

HELLO = 'package main\n\nvar version = "none"\n\nfunc main() { print(version) }\n'


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    folder = tmp_path / "tools" / "hello"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text("module example.com/hello\n\ngo 1.21\n\n// example.com/hello v1.2.3\n")
    (folder / "go.sum").touch()
    (folder / "main.go").write_text(HELLO)
    monkeypatch.setattr(catalog, "TOOLS_FOLDER", tmp_path / "tools")
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    made = Tool("hello", {"hello": "example.com/hello"}, "// example.com/hello", "-X main.version={version}")
    monkeypatch.setitem(build.TOOLS, "hello", made)
    monkeypatch.setitem(build.OWNER, "hello", made)
    return made


def test_a_program_is_built_once_with_its_version(tool: Tool, capfd: pytest.CaptureFixture[str]) -> None:
    path = build.program("hello")
    assert subprocess.run([path], check=True, capture_output=True, text=True).stderr == "v1.2.3"
    assert "✓ build hello v1.2.3" in capfd.readouterr().err
    assert build.program("hello") == path
    assert capfd.readouterr().err == ""


def test_another_go_mod_is_another_build(tool: Tool) -> None:
    first = build.bin_folder(tool)
    (tool.folder / "go.mod").write_text((tool.folder / "go.mod").read_text() + "\n// changed\n")
    assert build.bin_folder(tool) != first


def test_a_failing_build_says_why_and_leaves_nothing_to_be_taken_for_a_program(tool: Tool, tmp_path: Path) -> None:
    (tool.folder / "main.go").write_text("package main\n\nfunc main() { nonsense() }\n")
    with pytest.raises(build.ToolError, match="undefined: nonsense"):
        build.program("hello")
    assert [path.suffix for path in (tmp_path / "cache" / "tools").iterdir()] == [".lock"]


def test_two_at_once_build_once(tool: Tool, capfd: pytest.CaptureFixture[str]) -> None:
    threads = [threading.Thread(target=build.program, args=("hello",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = capfd.readouterr().err.splitlines()
    assert sum("packages compiled" in line for line in lines) <= 1
    assert build.program("hello").is_file()


def test_a_go_that_is_too_old_is_named(tool: Tool) -> None:
    (tool.folder / "go.mod").write_text("module example.com/hello\n\ngo 1.99\n")
    build.go_version.cache_clear()
    with pytest.raises(build.ToolError, match=r"1\.99"):
        build.go_version(tool.folder)
