"""One cluster with the chart installed, shared by the end-to-end tests and removed after them."""

import os
from collections.abc import Iterator

import pytest

from demo.cluster import Cluster, gateway_url
from demo.install import SYSTEM, Installation, install
from localcluster import cli
from toolbox.progress import Progress

# Not the demonstration's cluster: both may run at the same time, and two runs of the tests under two names.
NAME = os.environ.get("OCTAVO_E2E_NAME", "octavo-e2e")


@pytest.fixture(scope="session")
def installation() -> Iterator[Installation]:
    if os.geteuid() != 0:
        pytest.skip("a Kubernetes node needs root: run the end-to-end tests as root")
    cli.main(["down", "--name", NAME])
    try:
        yield install(NAME, None, Progress())
    finally:
        if "OCTAVO_E2E_KEEP" not in os.environ:
            cli.main(["down", "--name", NAME])


@pytest.fixture(scope="session")
def cluster(installation: Installation) -> Cluster:
    return installation.cluster


@pytest.fixture(scope="session")
def example(installation: Installation) -> str:
    return installation.example


@pytest.fixture(scope="session")
def system() -> str:
    return SYSTEM


@pytest.fixture(scope="session")
def url(installation: Installation) -> Iterator[str]:
    with gateway_url(installation.cluster, SYSTEM, direct=installation.direct) as address:
        yield address
