"""Programs from Debian packages, unpacked instead of installed: starts no daemon, needs no root."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

from toolbox import deps
from toolbox.errors import ToolError
from toolbox.paths import cache_root


def debian_program(name: str, package: str) -> Path:
    """The program `name` from PATH, else from `package`, which apt-get downloads and verifies. Raises ToolError."""
    if installed := shutil.which(name, path=deps.SEARCH_PATH):
        return Path(installed)
    folder = cache_root() / "debian" / package
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        # Tests call this from several processes at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _unpack(package, folder)
    found = folder / "usr" / "bin" / name
    if not found.is_file():
        raise ToolError(f"Debian's package {package} has no /usr/bin/{name}: install {name} and put it on PATH")
    return found


def _unpack(package: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        # apt's sandbox user cannot write to this folder.
        _run(["apt-get", "--quiet", "--option", "APT::Sandbox::User=root", "download", package], scratch, package)
        (archive,) = Path(scratch).glob("*.deb")
        content = Path(scratch) / "content"
        _run(["dpkg-deb", "--extract", str(archive), str(content)], scratch, package)
        content.rename(folder)


def _run(command: list[str], folder: str, package: str) -> None:
    try:
        run = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise ToolError(f"{command[0]} is missing: install {package} (Debian's name) and put it on PATH") from error
    if run.returncode:
        raise ToolError(f"{' '.join(command)}: {run.stderr.strip()}; install {package} and put it on PATH")
