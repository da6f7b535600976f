"""Dashboards and alerts against a real Prometheus that watched the whole session; runs after what causes load."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.examples import changed
from tests.e2e.waiting import patiently

from demo.cluster import Cluster
from demo.traffic import Load, chat
from monitoring import dashboards
from monitoring.dashboards import Dashboard
from monitoring.draw import draw
from monitoring.prometheus import Prometheus

pytestmark = pytest.mark.exclusive

CHART = Path(__file__).resolve().parents[2] / "charts" / "octavo"
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
RULES = [
    rule for group in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
# What scrapes every two seconds needs no longer one; Grafana takes four scrapes at least.
RATE_INTERVAL = "15s"
# Series that exist only once their event happened; the suite causes them all, but perhaps no second try of a gateway.
RARE = re.compile("retries_total|hold_seconds|autoscaler_changes|octavo_failures")
UNSURE = re.compile("retries_total")
# Alerts that the rest of the suite causes: killed pods and operators, models that cannot be had, a load that scales.
CAUSED = {
    "OctavoModelDegraded",
    "OctavoModelDown",
    "OctavoAutoscalerAtMax",
    "OctavoStreamsBroken",
    "OctavoReplicasFail",
}
Report = Callable[[str, str | bytes], None]


@pytest.fixture(scope="module")
def seen(watching: Any) -> Prometheus:
    if watching is None:
        pytest.skip("WITHOUT PROMETHEUS: dashboards and alerts are not tested (Debian package prometheus)")
    prometheus: Prometheus = watching.prometheus
    return prometheus


@contextmanager
def asking(url: str, name: str) -> Iterator[None]:
    """A client that asks for a model again and again: it is told 404 until the gateway has heard of the model."""
    body = {"model": name, "messages": [{"role": "user", "content": "Anybody?"}]}
    leave = threading.Event()

    def ask() -> None:
        while not leave.wait(0.5):
            chat(url, body, timeout=30)

    threading.Thread(target=ask, daemon=True).start()
    yield
    leave.set()


@pytest.fixture(scope="module")
def nobodys(cluster: Cluster, example: str, url: str) -> Iterator[str]:
    """A model that nobody can have: a client that asks for it is told so at once."""
    name = "nobody-has-it"
    cluster.apply(changed(example, name, model={"uri": "oci://localhost:5000/models/no-such-model:v1"}))
    with asking(url, name):
        yield name
    cluster.run("delete", "llmd", name, "-n", cluster.namespace, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="module")
def awaited(cluster: Cluster, example: str, url: str) -> Iterator[str]:
    """A model whose replica waits for a node that may still come, and a client that waits with it."""
    name = "waits-for-a-node"
    cluster.apply(changed(example, name, scheduling={"nodeSelector": {"example.com/none-has": "this"}}))
    with asking(url, name):
        yield name
    cluster.run("delete", "llmd", name, "-n", cluster.namespace, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="module", autouse=True)
def served(cluster: Cluster, example: str, url: str, nobodys: str, awaited: str) -> Iterator[None]:
    """A model with a little load, so that these tests say something when they run alone."""
    resource = yaml.safe_load(example)
    resource["metadata"]["name"] = "watched"
    cluster.apply(resource)
    patiently("ready", lambda: cluster.ready_pods("watched"), timeout=240)
    asked = [{"role": "user", "content": "Count as far as you can."}]
    body = {"model": "watched", "messages": asked, "max_tokens": 60, "min_tokens": 60}
    # Long enough for the autoscaler to learn what a replica does.
    streams = Load(url, [body] * 3, requests_each=12, timeout=120).join(240)
    assert all(stream.complete for stream in streams)
    yield
    cluster.run("delete", "llmd", "watched", "-n", cluster.namespace, "--wait=false")


def test_everything_of_octavo_is_scraped(seen: Prometheus, cluster: Cluster, system: str) -> None:
    def complete() -> bool:
        wanted = {
            pod["metadata"]["name"]
            for space in (system, cluster.namespace)
            for pod in cluster.items("pods", "app.kubernetes.io/part-of=octavo", space)
            if pod["status"]["phase"] == "Running" and not pod["metadata"].get("deletionTimestamp")
        }
        up = {target["labels"]["pod"] for target in seen.targets() if target["health"] == "up"}
        return len(wanted) >= 5 and wanted <= up

    patiently("all pods scraped", complete, timeout=60)
    names = {sample["metric"]["name"] for sample in seen.query("octavo_desired_replicas")}
    assert "watched" in names, "the operator's own labels are lost"


def test_every_metric_of_alerts_and_dashboards_exists(seen: Prometheus) -> None:
    known = seen.metadata()
    known |= {f"{name}{end}" for name in known for end in ("_bucket", "_count", "_sum", "_total")}
    texts = [rule["expr"] for rule in RULES]
    texts += [query.expression for path in DASHBOARDS for panel in load(path).panels for query in panel.queries]
    used = {name for text in texts for name in re.findall(r"\b(?:octavo|leader|workqueue|rest_client)[\w:]*\b", text)}
    assert len(used) > 30
    assert used <= known | {"octavo"}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_finds_data(
    seen: Prometheus, watching: Any, path: Path, left_out: str, report: Report
) -> None:
    board, end = load(path), time.time()
    queries = [query for panel in board.panels for query in panel.queries]
    step = max(2.0, (end - watching.since) / 300)
    results = {query: seen.query_range(query.expression, watching.since, end, step) for query in queries}
    report(f"{board.uid}.svg", draw(board, results, watching.since))
    empty = [query.expression for query in queries if not results[query]]
    assert not [expression for expression in empty if not RARE.search(expression)]
    caused = [expression for expression in empty if not UNSURE.search(expression)]
    if left_out and caused:
        pytest.skip(f"NO DATA YET for {caused}: this session is without {left_out}")
    assert not caused


def test_every_alert_is_evaluated_and_fires_for_what_the_suite_did(
    seen: Prometheus, watching: Any, left_out: str, report: Report
) -> None:
    rules = seen.rules()
    assert {rule["alert"] for rule in RULES} == set(rules)
    assert not {name: rule["lastError"] for name, rule in rules.items() if rule["health"] != "ok"}
    since = max(5.0, time.time() - watching.since)
    fired = seen.query(f'count by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{since:.0f}s]))')
    names = {sample["metric"]["alertname"] for sample in fired}
    lines = ["| alert | fired in the end-to-end tests |", "|---|---|"]
    report("alerts.md", "\n".join([*lines, *(f"| {name} | {'yes' if name in names else 'no'} |" for name in rules)]))
    if left_out:
        pytest.skip(f"NOT COMPARED with {sorted(CAUSED)}: this session is without {left_out}")
    assert names >= CAUSED


def test_alerts_fire_while_something_is_wrong_and_end_with_it(
    seen: Prometheus, cluster: Cluster, system: str, nobodys: str, awaited: str
) -> None:
    def fires(alert: str) -> Callable[[], bool]:
        return lambda: alert in seen.firing()

    patiently("OctavoModelDown", fires("OctavoModelDown"), timeout=60)
    patiently("OctavoReplicasFail", fires("OctavoReplicasFail"), timeout=60)
    patiently("OctavoRequestsHeld", fires("OctavoRequestsHeld"), timeout=90)
    cluster.run("scale", "deployment/octavo-operator", "-n", system, "--replicas=0")
    try:
        patiently("OctavoOperatorNotLeading", fires("OctavoOperatorNotLeading"), timeout=90)
    finally:
        cluster.run("scale", "deployment/octavo-operator", "-n", system, "--replicas=2")
    patiently("a leader", _not(fires("OctavoOperatorNotLeading")), timeout=120)
    cluster.run("delete", "llmd", nobodys, awaited, "-n", cluster.namespace, "--wait=false")
    for alert in ("OctavoModelDown", "OctavoReplicasFail", "OctavoRequestsHeld"):
        patiently(f"{alert} ended", _not(fires(alert)), timeout=90)


def _not(probe: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: not probe()


def load(path: Path) -> Dashboard:
    return dashboards.load(path, RATE_INTERVAL)
