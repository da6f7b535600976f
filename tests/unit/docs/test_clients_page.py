"""docs/evidence/clients.md is what `python -m tests.clients.table` writes."""

from __future__ import annotations

from tests.clients import table
from tests.clients.table import PACKAGES, PAGE


def test_the_page_is_generated() -> None:
    assert PAGE.read_text() == table.page()


def test_every_script_is_in_it() -> None:
    assert {path.stem.removeprefix("check_") for path in table.FOLDER.glob("check_*.py")} == PACKAGES.keys()
