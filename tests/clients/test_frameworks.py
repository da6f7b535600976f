"""Agent frameworks run unchanged with a server and with a gateway: tools, streams, typed answers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.clients.conftest import MODEL
from tests.clients.environments import NoIndexError, families, python_of

SCRIPTS = Path(__file__).parent / "families"
FAMILIES = [family for family in families() if family != "browser"]  # that of test_page.py


def script_of(family: str) -> Path:
    return SCRIPTS / f"check_{family.replace('-', '_')}.py"


def test_every_family_has_a_script() -> None:
    assert {script_of(family) for family in FAMILIES} == set(SCRIPTS.glob("check_*.py"))


@pytest.mark.parametrize("via", ["server", "gateway"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_framework_works_unchanged(family: str, via: str, address_of: Callable[[str], str], tmp_path: Path) -> None:
    try:
        python = python_of(family)
    except NoIndexError as error:
        pytest.skip(f"{family}: {error}")
    # Nothing of Octavo's own environment.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OPENAI"))}
    run = subprocess.run(
        [python, script_of(family), address_of(via), MODEL],
        env=environment | {"OPENAI_API_KEY": "none", "LANGSMITH_TRACING": "false"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=500,
    )
    assert run.returncode == 0, run.stdout
