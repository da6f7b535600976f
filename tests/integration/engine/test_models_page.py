"""docs/models.md is what the tests compare."""

from __future__ import annotations

from .models_page import PAGE, page


def test_the_page_is_what_is_tested() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.integration.engine.models_page"
