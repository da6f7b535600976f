"""One cluster with the chart installed, shared by the end-to-end tests."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e import shared

from demo.cluster import Cluster, gateway_url
from demo.install import SYSTEM, Installation
from localcluster import record
from localcluster.addresses import Addresses
from monitoring.prometheus import Prometheus

HERE = Path(__file__).parent
# What takes longest begins first, so that no worker is left with it at the end.
FIRST = ("test_external", "test_failures", "test_rollouts", "test_cluster", "test_gpu", "test_autoscaling")
_LONGEST = 1800
# These look at what the whole session did.
LAST = ("test_observability", "test_rights")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files of `FIRST` first and those of `LAST` last."""

    def place(item: pytest.Item) -> int:
        name = item.path.stem
        return FIRST.index(name) - len(FIRST) if name in FIRST else 1 + LAST.index(name) if name in LAST else 0

    items.sort(key=place)
    for item in items:
        # Above all that a test may wait for: what it waited for says more than a time-out.
        item.add_marker(pytest.mark.timeout(_LONGEST), append=False)


@dataclass(frozen=True)
class Watching:
    """A running Prometheus and when it began, in Unix time."""

    prometheus: Prometheus
    since: float


@pytest.fixture(scope="session")
def left_out() -> str:
    """Which tests did not run on this cluster before; empty when all of them did and passed."""
    return "" if os.environ.get("OCTAVO_E2E_COMPLETE") else "all other tests, which `make e2e` runs before"


@pytest.fixture(scope="session")
def running(request: pytest.FixtureRequest) -> Iterator[shared.Shared]:
    if os.geteuid() != 0:
        pytest.skip("a Kubernetes node needs root: run the end-to-end tests as root")
    if file := os.environ.get(shared.FILE):
        yield shared.load(Path(file))
        return
    if hasattr(request.config, "workerinput"):
        pytest.exit("the workers of one run need one cluster: run `make e2e`, or pytest without -n", returncode=2)
    with shared.running() as made:
        yield made


@pytest.fixture(scope="session")
def installation(running: shared.Shared) -> Installation:
    return running.installation


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
def data(installation: Installation) -> Path:
    """The local cluster's data folder, with its logs."""
    found = record.load(shared.NAME)
    assert found is not None
    return found.data


@pytest.fixture(scope="session")
def this_machine(installation: Installation) -> str:
    """This machine's address as pods see it."""
    found = record.load(shared.NAME)
    assert found is not None
    return Addresses(found.network or 0).host


@pytest.fixture(scope="session")
def registry(installation: Installation) -> str:
    """host:port of the local cluster's registry, to push to."""
    found = record.load(shared.NAME)
    assert found is not None
    return Addresses(found.network or 0).registry


@pytest.fixture(scope="session")
def direct(installation: Installation) -> bool:
    """Whether this machine has a route to the cluster's Services."""
    return installation.direct


@pytest.fixture(scope="session")
def url(installation: Installation) -> Iterator[str]:
    with gateway_url(installation.cluster, SYSTEM, direct=installation.direct) as address:
        yield address


@pytest.fixture(scope="session")
def watching(running: shared.Shared) -> Watching | None:
    """The Prometheus that scrapes the cluster's pods since its start; None where there is none to be had."""
    prometheus = shared.watched(running)
    return Watching(prometheus, running.since) if prometheus else None


@pytest.fixture(scope="session")
def report() -> Callable[[str, str | bytes], None]:
    """Shows a result, and writes it to $OCTAVO_E2E_REPORT where that is set: docs/ has its tables from there."""
    folder = os.environ.get("OCTAVO_E2E_REPORT")

    def write(name: str, content: str | bytes) -> None:
        if isinstance(content, str):
            print(f"\n{content}")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            data = content.encode() if isinstance(content, str) else content
            (Path(folder) / name).write_bytes(data)

    return write
