"""Clients run unchanged with a server and with a gateway: each feature of each is a test."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from tests.clients.clients import CLIENTS, SCRIPTS, Client
from tests.clients.environments import NoIndexError, command_of, families
from tests.clients.families.checks import Place
from tests.clients.scripts import copied_scripts, run_checks
from tests.clients.tools import TOOLS

CELLS = [
    pytest.param(client, feature, id=f"{client.name}-{feature}")
    for client in CLIENTS
    for feature, reason in client.features().items()
    if not reason
]
Results = Callable[[Client, str], dict[str, str] | NoIndexError]


@pytest.fixture(scope="module")
def results(places: dict[str, Place], tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What the script of a client found out with a place, by feature; empty where it works."""

    @cache
    def run(client: Client, via: str) -> dict[str, str] | NoIndexError:
        folder = tmp_path_factory.mktemp(client.name)
        scripts = copied_scripts(folder)
        try:
            command = command_of(client.environment, scripts)
        except NoIndexError as error:
            return error  # not asked again for each feature
        return run_checks(client, command, places[via], scripts)

    return run


@pytest.mark.parametrize("via", ["server", "gateway"])
@pytest.mark.parametrize(("client", "feature"), CELLS)
def test_a_client_works_unchanged(client: Client, feature: str, via: str, results: Results) -> None:
    found = results(client, via)
    if isinstance(found, NoIndexError):
        pytest.skip(f"{client.name}: {found}")
    assert not found[feature], found[feature]


def test_every_script_is_run() -> None:
    used = {client.path for client in CLIENTS}
    assert used == set(SCRIPTS.glob("check_*"))


def test_every_environment_is_used() -> None:
    of_tools = {tool.environment for tool in TOOLS} - {None}
    assert set(families()) == {client.environment for client in CLIENTS} | of_tools | {"browser"}
