"""The page at /, in a headless browser."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.clients.environments import NoIndexError, python_of
from tests.clients.families.checks import Place
from tests.clients.places import arguments_of

SCRIPT = Path(__file__).with_name("page_in_browser.py")


@pytest.mark.parametrize("via", ["server", "gateway"])
def test_people_can_use_the_page(via: str, places: dict[str, Place], tmp_path: Path) -> None:
    """OCTAVO_SCREENSHOTS names a folder for screenshots."""
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if chromium is None:
        pytest.skip("no browser: install chromium-headless-shell")
    try:
        python = python_of("browser")
    except NoIndexError as error:
        pytest.skip(f"browser: {error}")
    folder = [os.environ["OCTAVO_SCREENSHOTS"]] if os.environ.get("OCTAVO_SCREENSHOTS") else []
    run = subprocess.run(
        [python, SCRIPT, via, arguments_of(places[via]), chromium, *folder],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=500,
    )
    assert run.returncode == 0, run.stdout
