"""The official clients of OpenAI and Anthropic with a server: each feature, from the environment of the tests.

`make test-clients` tries these and many others, in more versions and with a gateway.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.clients.clients import CLIENTS, Client
from tests.clients.families.checks import Place
from tests.clients.places import server_place
from tests.clients.scripts import copied_scripts, run_checks

from .conftest import Start

OFFICIAL = [client for client in CLIENTS if client.name in {"openai", "anthropic"}]


@pytest.fixture(scope="module")
def place(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return server_place(start, tmp_path_factory.mktemp("keys"))


@pytest.mark.parametrize("client", OFFICIAL, ids=lambda client: client.name)
def test_every_feature_works(client: Client, place: Place, tmp_path: Path) -> None:
    found = run_checks(client, [sys.executable], place, copied_scripts(tmp_path))
    assert not "".join(found.values()), found
