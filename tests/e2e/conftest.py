"""One cluster with the chart installed, shared by the end-to-end tests and removed after them."""

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo.cluster import Cluster, gateway_url
from demo.install import SYSTEM, Installation, install
from localcluster import audit, cli, kube, record
from localcluster.addresses import Addresses
from localcluster.pki import Pki
from monitoring.discovery import discovery
from monitoring.prometheus import Prometheus, prometheus
from toolbox import ToolError
from toolbox.progress import Progress

# Not the demonstration's cluster: both may run at the same time, and two runs of the tests under two names.
NAME = os.environ.get("OCTAVO_E2E_NAME", "octavo-e2e")
HERE = Path(__file__).parent
ALERTS = HERE.parents[1] / "charts" / "octavo" / "files" / "alerts.yaml"
# Run after all others: they look at what the whole session did.
LAST = ("test_observability.py", "test_rights.py")
COMPLETE = pytest.StashKey[str]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the tests of `LAST` last, and remembers what of the suite is left out."""
    items.sort(
        key=lambda item: LAST.index(item.path.name) + 1 if item.path.parent == HERE and item.path.name in LAST else 0
    )
    absent = {path.name for path in HERE.glob("test_*.py")} - {
        item.path.name for item in items if item.path.parent == HERE
    }
    chosen = [
        config.option.keyword,
        config.option.markexpr,
        *(a for a in config.args if "::" in a),
        *(config.option.deselect or ()),
    ]
    left_out = [*sorted(absent), *(f"what {choice!r} leaves out" for choice in chosen if choice)]
    config.stash[COMPLETE] = ", ".join(left_out)


@dataclass(frozen=True)
class Watching:
    """A running Prometheus and when it began, in Unix time."""

    prometheus: Prometheus
    since: float


@pytest.fixture(scope="session")
def left_out(pytestconfig: pytest.Config) -> str:
    """Which tests of this folder do not run in this session; empty when all do."""
    return pytestconfig.stash[COMPLETE]


@pytest.fixture(scope="session")
def installation() -> Iterator[Installation]:
    if os.geteuid() != 0:
        pytest.skip("a Kubernetes node needs root: run the end-to-end tests as root")
    if "OCTAVO_E2E_KEEP" not in os.environ:
        cli.main(["down", "--name", NAME])
    spaces = (SYSTEM, "team-a", "team-b")
    accounts = [f"system:serviceaccount:{space}:octavo-{part}" for space in spaces for part in ("operator", "gateway")]
    try:
        yield install(NAME, None, Progress(), audit_policy=audit.policy(accounts), watched=True)
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
def data(installation: Installation) -> Path:
    """The local cluster's data folder, with its logs."""
    found = record.load(NAME)
    assert found is not None
    return found.data


@pytest.fixture(scope="session")
def this_machine(installation: Installation) -> str:
    """This machine's address as pods see it."""
    found = record.load(NAME)
    assert found is not None
    return Addresses(found.network or 0).host


@pytest.fixture(scope="session")
def registry(installation: Installation) -> str:
    """host:port of the local cluster's registry, to push to."""
    found = record.load(NAME)
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


@pytest.fixture(autouse=True)
def watch_from_the_start(request: pytest.FixtureRequest) -> None:
    """Starts `watching` with the first test that uses the cluster; the tests of the local cluster itself do not."""
    if "installation" in request.fixturenames:
        request.getfixturevalue("watching")


@pytest.fixture(scope="session")
def watching(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watching | None]:
    """A Prometheus that scrapes the cluster's pods until the end of the session; None where there is none to be had.

    Its alerts are the chart's, except that they do not wait, nor for a request to be held for a minute.
    """
    folder = tmp_path_factory.mktemp("prometheus")
    rules = folder / "alerts.yaml"
    rules.write_text(
        re.sub(r"\bfor: \w+", "for: 4s", ALERTS.read_text()).replace("hold_seconds) > 60", "hold_seconds) > 5")
    )
    try:
        found = record.load(NAME)
        assert found is not None
        api = kube.connect(found.server, Pki(found.data / "pki"))
        with discovery(api) as targets, prometheus(folder, targets, rules) as running:
            yield Watching(running, time.time())
    except ToolError as error:
        print(f"WITHOUT PROMETHEUS: {error}")
        yield None


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
