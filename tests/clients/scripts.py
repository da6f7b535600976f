"""Runs the script of a client and reads what it reports."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.clients.clients import SCRIPTS, Client
from tests.clients.families.checks import Place
from tests.clients.places import arguments_of, clean_environment

SECONDS = 480


def copied_scripts(folder: Path) -> Path:
    """A folder with all scripts, where Node's packages may be linked."""
    return Path(shutil.copytree(SCRIPTS, folder / "scripts", ignore=shutil.ignore_patterns("__pycache__")))


def run_checks(client: Client, command: Sequence[str | Path], place: Place, scripts: Path) -> dict[str, str]:
    """The error of each feature, empty where it works. `command` runs a script."""
    try:
        output = subprocess.run(
            [*command, scripts / client.script, arguments_of(place)],
            env=clean_environment(),
            cwd=scripts.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=SECONDS,
        ).stdout
    except subprocess.TimeoutExpired as late:
        output = f"{(late.stdout or b'').decode()}\nit took longer than {SECONDS} s"
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"feature":')]
    found = {line["feature"]: line["error"] for line in lines}
    ended = f"the script ended before it:\n{output}"
    return {feature: found.get(feature, ended) for feature, reason in client.features().items() if not reason}
