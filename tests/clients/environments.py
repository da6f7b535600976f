"""Environments of client libraries, one for each lock in requirements/clients: FAMILY.txt or FAMILY/package-lock.json.

They are outside the clone, in the cache folder, and their names contain a hash of the lock. Client libraries need other
versions of the same packages than Octavo and than each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from toolbox.paths import cache_root

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "requirements/clients"
# Families that need a newer Python than the tests; where none is installed, they are skipped.
_PYTHONS = {"inference-perf": "3.12"}
# What uv and npm write where no package index answers. Anything else, such as a wrong hash, is an error of the lock.
_NO_INDEX = re.compile(
    r"failed to fetch|network (?:was|is) disabled|ENOTCACHED|ENOTFOUND|ECONNREFUSED|EAI_AGAIN|ETIMEDOUT", re.IGNORECASE
)


class NoIndexError(Exception):
    """An environment cannot be made: its packages are not cached and no package index answers, or Node is missing."""


def families() -> list[str]:
    """The families of clients, which are the names of the locks."""
    python = [lock.stem for lock in LOCKS.glob("*.txt")]
    return sorted([*python, *(lock.parent.name for lock in LOCKS.glob("*/package-lock.json"))])


def command_of(family: str, scripts: Path, environment: Mapping[str, str] = os.environ) -> list[str | Path]:
    """The command that runs a script in the folder `scripts`. Node finds the packages by a link there.

    Raises as `python_of` does.
    """
    if (LOCKS / f"{family}.txt").exists():
        return [python_of(family, environment)]
    node = _program("node", environment)
    link = scripts / "node_modules"
    if not link.is_symlink():
        link.symlink_to(modules_of(family, environment))
    return [node]


def python_of(family: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The interpreter of a family's environment, which is made if it is not in the cache.

    Raises `NoIndexError`, and `CalledProcessError` for a lock that cannot be installed.
    """
    lock = LOCKS / f"{family}.txt"
    key, make = sys.version.encode() + lock.read_bytes(), partial(_with_uv, _PYTHONS.get(family, sys.executable))
    return _folder(family, key, make, lock, environment) / "bin/python"


def modules_of(family: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder node_modules of a family's environment, made and with errors as above."""
    lock = LOCKS / family / "package-lock.json"
    return _folder(family, lock.read_bytes(), _with_npm, lock, environment) / "node_modules"


Make = Callable[[Path, Path, Mapping[str, str]], None]


def _folder(family: str, key: bytes, make: Make, lock: Path, environment: Mapping[str, str]) -> Path:
    digest = hashlib.sha256(key).hexdigest()[:16]
    folder = cache_root(environment) / "clients" / f"{family}-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Two runs of the tests do not make the same one; a killed process releases the lock.
    with (folder.parent / "lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not (folder / ".complete").exists():
            make(folder, lock, environment)
            (folder / ".complete").touch()
    return folder


def _with_uv(python: str, folder: Path, lock: Path, environment: Mapping[str, str]) -> None:
    variables = dict(environment)
    if own := environment.get("PIP_INDEX_URL"):  # uv does not read pip's variables
        variables.setdefault("UV_DEFAULT_INDEX", own)
    uv = str(Path(sys.executable).with_name("uv"))
    # `--python` names the environment: found by uv itself, it could be the one that runs the tests.
    into = ["--python", str(folder / "bin/python")]
    make = [uv, "venv", "--quiet", "--clear", "--no-python-downloads", "--python", python, str(folder)]
    run = subprocess.run(make, env=variables, capture_output=True, text=True, check=False)
    if run.returncode:
        raise NoIndexError(f"{lock.name} needs Python {python}: {_first_line(run.stderr)}")
    _run(lock, [uv, "pip", "install", "--quiet", *into, "--no-deps", "--require-hashes", "-r", str(lock)], variables)


def _with_npm(folder: Path, lock: Path, environment: Mapping[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(lock.with_name(name), folder)
    # Without a network, npm would try for minutes.
    quick = ["--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=2000"]
    # Warnings, such as one about the version of Node, would come before the error.
    quiet = ["--loglevel=error", "--no-audit", "--no-fund", "--no-update-notifier"]
    install = [_program("npm", environment), "ci", "--ignore-scripts", *quick, *quiet, "--prefix", str(folder)]
    _run(lock, install, dict(environment))


def _program(name: str, environment: Mapping[str, str]) -> str:
    found = shutil.which(name, path=environment.get("PATH"))
    if found is None:
        raise NoIndexError(f"{name} is not installed")
    return found


def _run(lock: Path, command: list[str], variables: dict[str, str]) -> None:
    run = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if run.returncode and _NO_INDEX.search(run.stderr):
        raise NoIndexError(f"{lock.name} cannot be installed without a package index: {_first_line(run.stderr)}")
    if run.returncode:
        raise subprocess.CalledProcessError(run.returncode, command, run.stdout, run.stderr)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200]
