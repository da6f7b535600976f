"""docs/evidence/clients.md is what `make generate` writes."""

from __future__ import annotations

from tests.clients import table


def test_the_page_is_generated() -> None:
    assert table.PAGE.read_text() == table.page()
