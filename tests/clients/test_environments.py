"""Environments of client libraries are apart from that of the tests."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.clients import environments
from tests.clients.environments import LOCKS, NoIndexError, command_of, modules_of, python_of

NOTHING = "nothing-that-exists==1.0 --hash=sha256:" + "0" * 64 + "\n"


def lock(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A family `own` with this lock, and the variables of a cache in `folder`."""
    (folder / "own.txt").write_text(text)
    monkeypatch.setattr(environments, "LOCKS", folder)
    return {**os.environ, "OCTAVO_CACHE": str(folder / "cache"), "UV_OFFLINE": "1"}


def site_of(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip())


def wheel(folder: Path) -> str:
    """The line of a lock for a distribution with the module `own_module`."""
    path = folder / "own-1.0-py3-none-any.whl"
    files = {
        "own_module.py": "",
        "own-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: own\nVersion: 1.0\n",
        "own-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: own\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "own-1.0.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return f"own @ {path.as_uri()} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def test_packages_go_into_the_environment_of_the_family_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = python_of("own", lock(tmp_path, wheel(tmp_path), monkeypatch))
    assert (site_of(python) / "own_module.py").exists()
    assert site_of(python).is_relative_to(tmp_path / "cache")
    assert importlib.util.find_spec("own_module") is None
    assert subprocess.run([python, "-c", "import pytest"], capture_output=True, check=False).returncode


def test_without_an_index_the_reason_names_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoIndexError, match=r"own\.txt cannot be installed without a package index"):
        python_of("own", lock(tmp_path, NOTHING, monkeypatch))


def test_a_lock_that_is_wrong_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not look like a machine without a network."""
    with pytest.raises(subprocess.CalledProcessError):
        python_of("own", lock(tmp_path, "no version\n", monkeypatch))


needs_node = pytest.mark.skipif(shutil.which("npm") is None, reason="Node is not installed")


def node_lock(folder: Path, package: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A family `own` for Node that needs the package `own`, and the variables of a cache in `folder`."""
    wanted = {"name": "locked", "dependencies": {"own": package.get("resolved", package["version"])}}
    packages = {"": wanted, "node_modules/own": package}
    (folder / "own").mkdir()
    (folder / "own/package.json").write_text(json.dumps(wanted))
    (folder / "own/package-lock.json").write_text(
        json.dumps({"name": "locked", "lockfileVersion": 3, "requires": True, "packages": packages})
    )
    monkeypatch.setattr(environments, "LOCKS", folder)
    caches = {"OCTAVO_CACHE": str(folder / "cache"), "npm_config_cache": str(folder / "npm")}
    return {**os.environ, **caches, "npm_config_offline": "true"}


def node_package(folder: Path) -> dict[str, str]:
    """The entry of a lock for a package whose module exports the text `found`."""
    path = folder / "own-1.0.0.tgz"
    files = {
        "package/package.json": json.dumps({"name": "own", "version": "1.0.0", "exports": "./own.mjs"}),
        "package/own.mjs": 'export default "found";',
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return {"version": "1.0.0", "resolved": f"file:{path}", "integrity": integrity(path.read_bytes())}


def integrity(content: bytes) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()


@needs_node
def test_a_script_for_node_finds_the_packages_of_its_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "check.mjs").write_text('import own from "own"; console.log(own);')
    variables = node_lock(tmp_path, node_package(tmp_path), monkeypatch)
    for _ in range(2):
        command = [*command_of("own", scripts, variables), scripts / "check.mjs"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "found\n"
    assert modules_of("own", variables).is_relative_to(tmp_path / "cache")


@needs_node
def test_packages_for_node_with_another_hash_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = node_package(tmp_path) | {"integrity": integrity(b"another")}
    with pytest.raises(subprocess.CalledProcessError) as wrong:
        modules_of("own", node_lock(tmp_path, package, monkeypatch))
    assert "EINTEGRITY" in wrong.value.stderr


@needs_node
def test_without_an_index_the_reason_names_the_lock_of_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = {"version": "1.0.0", "integrity": integrity(b"")}
    with pytest.raises(NoIndexError, match=r"package-lock\.json cannot be installed without a package index: npm e"):
        modules_of("own", node_lock(tmp_path, package, monkeypatch))


def test_a_machine_without_node_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = node_lock(tmp_path, {"version": "1.0.0"}, monkeypatch)
    with pytest.raises(NoIndexError, match="node is not installed"):
        command_of("own", tmp_path, variables | {"PATH": str(tmp_path)})


def test_locks_for_node_have_hashes_and_name_no_address() -> None:
    for lock in LOCKS.glob("*/package-lock.json"):
        packages = json.loads(lock.read_text())["packages"]
        exact = json.loads(lock.with_name("package.json").read_text())["dependencies"]
        assert packages.pop("")["dependencies"] == exact
        assert {name: packages[f"node_modules/{name}"]["version"] for name in exact} == exact
        assert not [name for name, package in packages.items() if "resolved" in package or "integrity" not in package]
