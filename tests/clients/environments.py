"""Virtual environments of client libraries, one for each lock file in requirements/clients.

They are outside the clone, in the cache folder, and their names contain a hash of the lock. Client libraries need other
versions of the same packages than Octavo and than each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from toolbox.paths import cache_root

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "requirements/clients"
# What uv writes where no package index answers. Anything else, such as a wrong hash, is an error of the lock.
_NO_INDEX = re.compile(r"failed to fetch|network (?:was|is) disabled", re.IGNORECASE)


class NoIndexError(Exception):
    """An environment needs packages that are not in the download cache, and no package index answers."""


def families() -> list[str]:
    """The families of clients, which are the names of the locks."""
    return sorted(lock.stem for lock in LOCKS.glob("*.txt"))


def python_of(family: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The interpreter of a family's environment, which is made if it is not in the cache.

    Raises `NoIndexError`, and `CalledProcessError` for a lock that cannot be installed.
    """
    lock = LOCKS / f"{family}.txt"
    digest = hashlib.sha256(sys.version.encode() + lock.read_bytes()).hexdigest()[:16]
    folder = cache_root(environment) / "clients" / f"{family}-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Two runs of the tests do not make the same one; a killed process releases the lock.
    with (folder.parent / "lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not (folder / ".complete").exists():
            _make(folder, lock, environment)
            (folder / ".complete").touch()
    return folder / "bin/python"


def _make(folder: Path, lock: Path, environment: Mapping[str, str]) -> None:
    variables = dict(environment)
    if own := environment.get("PIP_INDEX_URL"):  # uv does not read pip's variables
        variables.setdefault("UV_DEFAULT_INDEX", own)
    uv = str(Path(sys.executable).with_name("uv"))
    # `--python` names the environment: found by uv itself, it could be the one that runs the tests.
    into = ["--python", str(folder / "bin/python")]
    install = [uv, "pip", "install", "--quiet", *into, "--no-deps", "--require-hashes", "-r", str(lock)]
    for command in ([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], install):
        run = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if run.returncode and _NO_INDEX.search(run.stderr):
            raise NoIndexError(f"{lock.name} cannot be installed without a package index: {_first_line(run.stderr)}")
        if run.returncode:
            raise subprocess.CalledProcessError(run.returncode, command, run.stdout, run.stderr)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200]
