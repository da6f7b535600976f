"""Programs that need no build: in $OCTAVO_KUBERNETES_BIN, or on PATH in the version of go.mod."""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from toolbox.catalog import PROGRAMS, Program
from toolbox.errors import ToolError

_SECONDS = 10.0


def named(name: str, env: Mapping[str, str] = os.environ) -> Path | None:
    """The program in $OCTAVO_KUBERNETES_BIN, in any version; None if the variable is unset or the folder lacks it.

    None also for a program that is always built here, see `Program.asks`.
    Raises ToolError for a Kubernetes program that the folder lacks, because versions must not be mixed silently.
    """
    folder = env.get("OCTAVO_KUBERNETES_BIN")
    if not folder or not PROGRAMS[name].asks:
        return None
    path = Path(folder).resolve() / name
    if os.access(path, os.X_OK):
        return path
    if PROGRAMS[name].module == "k8s.io/kubernetes":
        raise ToolError(f"OCTAVO_KUBERNETES_BIN={folder} has no program {name}: add it there or unset the variable")
    return None


def on_path(program: Program, path: str | None = None) -> tuple[Path | None, str]:
    """The program on PATH (or the search path `path`) if its version is that of go.mod; else None and the reason.

    The reason is empty if PATH has no such program, and for a program that is always built here.
    """
    found = shutil.which(program.name, path=path) if program.asks else None
    if found is None:
        return None, ""
    wanted, said = program.version(), _version(found, program.asks)
    if said == wanted.removeprefix("v"):
        return Path(found).resolve(), ""
    return None, f"{found} is {f'version {said}' if said else 'of no known version'}, not {wanted}: not used"


@functools.cache
def _version(path: str, asks: tuple[str, ...]) -> str:
    """The first version in a program's output, without a distribution's suffix; empty if there is none."""
    try:
        run = subprocess.run(
            [path, *asks], check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"(?<![\w.])v?(\d+\.\d+\.\d+(?:-[\w.]+)?)", run.stdout)
    return found[1] if run.returncode == 0 and found else ""
