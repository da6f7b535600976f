"""The examples of the documents in Python, and those with curl, run as they stand in the pages.

Those in Node run in tests/clients, which has its packages.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.documents import name
from tests.support.examples import check, pages, start_servers

from .conftest import Start


@pytest.fixture(scope="module")
def addresses(start: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return start_servers(start, tmp_path_factory.mktemp("template"))


@pytest.mark.parametrize("page", pages("python"), ids=name)
def test_examples_in_python_run(page: Path, addresses: dict[str, str], tmp_path: Path) -> None:
    check(page, "python", [sys.executable], addresses, tmp_path)


@pytest.mark.parametrize("page", pages("sh"), ids=name)
def test_examples_with_curl_run(page: Path, addresses: dict[str, str], tmp_path: Path) -> None:
    check(page, "sh", ["bash"], addresses, tmp_path)
