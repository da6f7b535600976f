"""The examples of the documents in Node run as they stand in the pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.clients.environments import NoIndexError, command_of
from tests.integration.api.conftest import Start
from tests.support.documents import name
from tests.support.examples import check, pages, start_servers


@pytest.fixture(scope="module")
def addresses(start: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return start_servers(start, tmp_path_factory.mktemp("template"))


@pytest.mark.parametrize("page", pages("js"), ids=name)
def test_examples_in_node_run(page: Path, addresses: dict[str, str], tmp_path: Path) -> None:
    try:
        command = command_of("node", tmp_path)
    except NoIndexError as missing:
        pytest.skip(f"node: {missing}")
    check(page, "js", command, addresses, tmp_path)
