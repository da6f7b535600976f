"""Python for 64-bit ARM from Debian packages, for qemu-user: runs tests of ARM code on another processor."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from toolbox.errors import ToolError
from toolbox.paths import cache_root

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
_PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6")


def python(lock: Path, distributions: Sequence[str], uv: Path) -> tuple[list[str], Path]:
    """The command that starts an emulated Python, and the folder of its distributions, for PYTHONPATH.

    `lock`: the locked requirements with hashes, from which `distributions` are installed. Both are downloaded once, by
    apt-get and `uv`. Raises ToolError.
    """
    folder = cache_root() / "arm"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        root = folder / "root"
        if not root.is_dir():
            _unpack(root)
        command = [EMULATOR, "-L", str(root), str(root / "usr" / "bin" / "python3")]
        version = _run([*command, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
        wanted = requirements(lock.read_text(encoding="utf-8"), distributions)
        site = folder / f"site-{hashlib.sha256(f'{version}{wanted}'.encode()).hexdigest()[:16]}"
        if not site.is_dir():
            _install(wanted, version, uv, site)
    return command, site


def requirements(lock: str, distributions: Sequence[str]) -> str:
    """The entries of a lock for these distributions: a line `name==version`, and its hashes below."""
    entries = [entry for entry in re.split(r"\n(?=\S)", lock) if entry.partition("==")[0] in distributions]
    if absent := set(distributions) - {entry.partition("==")[0] for entry in entries}:
        raise ToolError(f"the lock has no {', '.join(sorted(absent))}")
    return "\n".join(entries)


def _unpack(root: Path) -> None:
    """Download the packages and what they depend on for arm64, with apt's state in a folder of its own, and unpack."""
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        for part in ("state/lists/partial", "cache/archives/partial"):
            (Path(scratch) / part).mkdir(parents=True)
        status = Path(scratch) / "state" / "status"
        status.touch()
        settings = {
            "APT::Architecture": "arm64",
            "APT::Architectures::": "arm64",
            "APT::Sandbox::User": "root",  # its own user cannot write to this folder
            "Dir::State": f"{scratch}/state",
            "Dir::State::status": str(status),
            "Dir::Cache": f"{scratch}/cache",
        }
        apt = ["apt-get", "--quiet", *(f"--option={name}={value}" for name, value in settings.items())]
        _run([*apt, "update"])
        _run([*apt, "install", "--yes", "--no-install-recommends", "--download-only", *_PACKAGES])
        content = Path(scratch) / "content"
        for archive in sorted(Path(scratch).glob("cache/archives/*.deb")):
            _run(["dpkg-deb", "--extract", str(archive), str(content)])
        content.rename(root)


def _install(requirements: str, version: str, uv: Path, site: Path) -> None:
    with tempfile.TemporaryDirectory(dir=site.parent) as scratch:
        wanted, target = Path(scratch) / "requirements.txt", Path(scratch) / "site"
        wanted.write_text(requirements, encoding="utf-8")
        # uv does not read pip's variables; use the index that the user has set for pip.
        index = {"UV_DEFAULT_INDEX": own} if (own := os.environ.get("PIP_INDEX_URL")) else {}
        options = ["--python-platform", "aarch64-manylinux_2_28", "--python-version", version, "--only-binary", ":all:"]
        command = [str(uv), "pip", "install", "--quiet", "--no-deps", "--require-hashes", *options]
        _run([*command, "--target", str(target), "-r", str(wanted)], index)
        target.rename(site)


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    try:
        run = subprocess.run(
            command, check=False, env={**(environment or {}), **os.environ}, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise ToolError(f"{command[0]} is missing: a Python for ARM needs Debian's apt-get and qemu-user") from error
    if run.returncode:
        raise ToolError(f"{' '.join(command)} failed:\n{run.stderr.strip()[-2000:]}")
    return run.stdout
