"""Clients run unchanged with a server and with a gateway: each feature of each is a test."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from functools import cache

import pytest
from tests.clients.clients import CLIENTS, SCRIPTS, Client
from tests.clients.environments import NoIndexError, command_of, families
from tests.clients.families.checks import Place
from tests.clients.places import arguments_of, clean_environment

CELLS = [
    pytest.param(client, feature, id=f"{client.name}-{feature}")
    for client in CLIENTS
    for feature, reason in client.features().items()
    if not reason
]
Results = Callable[[Client, str], dict[str, str]]


@pytest.fixture(scope="module")
def results(places: dict[str, Place], tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What the script of a client found out with a place, by feature; empty where it works."""

    @cache
    def run(client: Client, via: str) -> dict[str, str]:
        folder = tmp_path_factory.mktemp(client.name)
        scripts = shutil.copytree(SCRIPTS, folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        done = subprocess.run(
            [*command_of(client.environment, scripts), scripts / client.script, arguments_of(places[via])],
            env=clean_environment(),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"feature":')]
        found = {line["feature"]: line["error"] for line in lines}
        return {feature: found.get(feature, f"the script ended before it:\n{done.stdout}") for feature in client.features()}

    return run


@pytest.mark.parametrize("via", ["server", "gateway"])
@pytest.mark.parametrize(("client", "feature"), CELLS)
def test_a_client_works_unchanged(client: Client, feature: str, via: str, results: Results) -> None:
    try:
        error = results(client, via)[feature]
    except NoIndexError as missing:
        pytest.skip(f"{client.name}: {missing}")
    assert not error, error


def test_every_script_is_run() -> None:
    used = {client.path for client in CLIENTS}
    assert used == set(SCRIPTS.glob("check_*"))


def test_every_environment_is_used() -> None:
    assert set(families()) == {client.environment for client in CLIENTS} | {"browser"}
