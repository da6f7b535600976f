"""`helm upgrade` and `helm rollback` under load: no request fails, no model pod restarts, the CRD changes in place."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.waiting import patiently

from demo.cluster import RESOURCE, Cluster
from demo.traffic import Load

pytestmark = [pytest.mark.exclusive, pytest.mark.full]

CHART = Path(__file__).resolve().parents[2] / "charts" / "octavo"
CRD = "llmdeployments.octavo.dev"
NAME = "steady"
# What the earlier version did not have; no rule of the schema may speak of it.
NEW_FIELD = "availability"
# Pods start one after the other beside a load that takes all CPUs: seconds on a quiet machine, minutes on a busy one.
WAIT = "10m"
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")


def retag(registry: str, repository: str, tag: str, other: str) -> None:
    """The same image under another tag of the registry."""
    connection = http.client.HTTPConnection(registry, timeout=30)
    path = f"/v2/{repository}/manifests"
    connection.request("GET", f"{path}/{tag}", headers={"Accept": ", ".join(MANIFESTS)})
    answer = connection.getresponse()
    body, kind = answer.read(), answer.headers["Content-Type"]
    assert answer.status == 200, body
    connection.request("PUT", f"{path}/{other}", body, {"Content-Type": kind})
    answer = connection.getresponse()
    assert answer.status == 201, answer.read()
    connection.close()


@pytest.fixture(scope="module")
def values(cluster: Cluster, system: str) -> dict[str, Any]:
    """The release's values as it was installed."""
    found: dict[str, Any] = json.loads(cluster.run_helm("get", "values", "octavo", "-n", system, "-o", "json"))
    return found


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This chart as a version before it: its own number, an older schema, other probes of the operator."""
    folder = tmp_path_factory.mktemp("earlier") / "octavo"
    shutil.copytree(CHART, folder)
    chart = yaml.safe_load((folder / "Chart.yaml").read_text())
    (folder / "Chart.yaml").write_text(yaml.safe_dump({**chart, "version": "0.0.9", "appVersion": "0.0.9"}))
    file = folder / "files" / f"{CRD}.yaml"
    crd = yaml.safe_load(file.read_text())
    head, _, _ = file.read_text().partition("spec:\n")
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][NEW_FIELD]
    # The head stays as it is: the chart's template looks for it.
    file.write_text(head + yaml.safe_dump({"spec": crd["spec"]}, sort_keys=False))
    operator = folder / "templates" / "operator" / "deployment.yaml"
    operator.write_text(operator.read_text().replace("periodSeconds: 10\n", "periodSeconds: 20\n"))
    return folder


@pytest.fixture
def before(
    cluster: Cluster, system: str, values: dict[str, Any], earlier: Path, registry: str, tmp_path: Path
) -> Iterator[None]:
    """The earlier version is installed; afterwards this one is again, whatever the test left."""
    old = json.loads(json.dumps(values))
    for part in ("operator", "gateway", "serverCpu"):
        image = old[part]["image"]
        retag(registry, image["repository"].partition("/")[2], image["tag"], "earlier")
        image["tag"] = "earlier"
    old["operator"] |= {"logLevel": "debug", "workers": 2}
    try:
        upgrade(cluster, system, earlier, old, tmp_path)
        yield
    finally:
        upgrade(cluster, system, CHART, values, tmp_path)


def upgrade(cluster: Cluster, system: str, chart: Path, values: dict[str, Any], folder: Path) -> None:
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    where = ("octavo", str(chart), "-n", system, "-f", str(file))
    cluster.run_helm("upgrade", *where, "--wait", "--timeout", WAIT, timeout=660)


def knows_new_field(cluster: Cluster) -> bool:
    (version,) = json.loads(cluster.run("get", "crd", CRD, "-o", "json"))["spec"]["versions"]
    return NEW_FIELD in version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]


def images(cluster: Cluster, system: str) -> set[str]:
    """Tags that operators and gateways run."""
    pods = cluster.items("pods", "app.kubernetes.io/part-of=octavo", system)
    return {container["image"].rpartition(":")[2] for pod in pods for container in pod["spec"]["containers"]}


def test_upgrade_and_rollback_under_load(
    cluster: Cluster,
    url: str,
    example: str,
    system: str,
    values: dict[str, Any],
    before: None,
    tmp_path: Path,
    report: Callable[[str, str], None],
) -> None:
    resource = yaml.safe_load(example)
    resource["metadata"]["name"] = NAME
    resource["spec"].pop("autoscaling", None)
    cluster.apply(resource)
    patiently("model", lambda: cluster.ready_pods(NAME), timeout=600)
    (pod,) = cluster.ready_pods(NAME)
    identity = (cluster.get(RESOURCE, NAME) or {})["metadata"]["uid"]
    assert not knows_new_field(cluster)
    rows = ["| step | requests | failed | model pods restarted |", "|---|---|---|---|"]

    def chats(number: int) -> dict[str, object]:
        text = f"Tell me story number {number}."
        return {"model": NAME, "messages": [{"role": "user", "content": text}], "max_tokens": 40, "min_tokens": 40}

    def under_load(step: str, change: Callable[[], object]) -> None:
        load = Load(url, [chats(number) for number in range(2)], requests_each=500, timeout=600)
        try:
            patiently("answers", lambda: len(load.results) >= 2, timeout=300)
            change()
            done = len(load.results)
            patiently("answers afterwards", lambda: len(load.results) >= done + 4, timeout=300)
        finally:
            load.stop()
        results = load.join(600)
        failed = [stream for stream in results if not stream.complete]
        (now,) = cluster.ready_pods(NAME)
        restarts = now["status"]["containerStatuses"][0]["restartCount"]
        same = now["metadata"]["uid"] == pod["metadata"]["uid"] and restarts == 0
        rows.append(f"| {step} | {len(results)} | {len(failed)} | {0 if same else 1} |")
        report("upgrade.md", "\n".join(rows))
        assert not failed, failed[:3]
        assert same, now["metadata"]["name"]
        assert (cluster.get(RESOURCE, NAME) or {})["metadata"]["uid"] == identity

    try:
        under_load("helm upgrade", lambda: upgrade(cluster, system, CHART, values, tmp_path))
        assert knows_new_field(cluster)
        patiently("only new images", lambda: "earlier" not in images(cluster, system), timeout=180)
        back = ("rollback", "octavo", "0", "-n", system, "--wait", "--timeout", WAIT)
        under_load("helm rollback", lambda: cluster.run_helm(*back, timeout=660))
        assert not knows_new_field(cluster)
    finally:
        cluster.run("delete", RESOURCE, NAME, "-n", cluster.namespace, "--wait=false")
