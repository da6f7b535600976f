"""Environments of client libraries are apart from that of the tests."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from tests.clients import environments
from tests.clients.environments import NoIndexError, python_of

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
