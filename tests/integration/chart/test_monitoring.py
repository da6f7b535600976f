"""PodMonitor, PrometheusRule and dashboards: there when asked for, and of the shape their readers take."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from .conftest import CHART, SYSTEM, Object

Render = Callable[..., list[Object]]
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))


def one(objects: list[Object], kind: str) -> Object:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def test_nothing_of_it_is_made_unasked(render: Render) -> None:
    kinds = {each["kind"] for each in render()}
    assert not kinds & {"PodMonitor", "PrometheusRule", "ConfigMap"}


def test_the_prometheus_rule_is_the_file_of_alerts(render: Render) -> None:
    rules = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    on = "monitoring.prometheusRule.enabled=true"
    made = one(render(on, "monitoring.prometheusRule.labels.release=p"), "PrometheusRule")
    assert made["spec"] == rules
    assert made["metadata"]["labels"]["release"] == "p"
    url = "https://wiki.example.com/octavo"
    moved = one(render(on, f"monitoring.prometheusRule.runbookUrl={url}"), "PrometheusRule")
    links = [rule["annotations"]["runbook_url"] for group in moved["spec"]["groups"] for rule in group["rules"]]
    assert links
    assert all(link.startswith(f"{url}#octavo") for link in links)


@pytest.mark.parametrize(
    ("values", "namespaces"),
    [
        ((), {"any": True}),
        (("rbac.scope=namespace",), {"matchNames": [SYSTEM]}),
        (("rbac.scope=namespace", 'rbac.namespaces=["team-a"]'), {"matchNames": [SYSTEM, "team-a"]}),
    ],
)
def test_the_pod_monitor_finds_the_ports_that_pods_have(
    render: Render, values: tuple[str, ...], namespaces: dict[str, Any]
) -> None:
    objects = render("monitoring.podMonitor.enabled=true", *values)
    monitor = one(objects, "PodMonitor")["spec"]
    assert monitor["namespaceSelector"] == namespaces
    templates = [each["spec"]["template"] for each in objects if each["kind"] == "Deployment"]
    for template in templates:
        assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
        assert ports & {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]}
    # Else the operator's labels `namespace` and `name` would be renamed, and no alert would match.
    assert all(endpoint["honorLabels"] for endpoint in monitor["podMetricsEndpoints"])


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_reaches_the_sidecar_as_it_is(render: Render, path: Any) -> None:
    maps = [each for each in render("monitoring.dashboards.enabled=true") if each["kind"] == "ConfigMap"]
    (data,) = [each for each in maps if path.name in each["data"]]
    assert data["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(data["data"][path.name]) == json.loads(path.read_text())


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_has_no_source_and_no_identity_of_some_grafana(path: Any) -> None:
    board = json.loads(path.read_text())
    assert "id" not in board
    assert board["uid"] == path.stem
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) > 0
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        at = panel["gridPos"]
        covered = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not covered & cells, f"{panel['title']} overlaps"
        assert at["x"] + at["w"] <= 24
        cells |= covered


def test_the_pods_take_metrics_peers_everywhere(render: Render) -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"team": "watch"}}}]
    objects = render(f"networkPolicy.metrics={json.dumps(peers)}")
    for policy in (each for each in objects if each["kind"] == "NetworkPolicy"):
        admitted = [peer for rule in policy["spec"]["ingress"] for peer in rule.get("from", [])]
        assert peers[0] in admitted, policy["metadata"]["name"]
    (operator,) = [e for e in objects if e["kind"] == "Deployment" and e["metadata"]["name"] == "octavo-operator"]
    arguments = operator["spec"]["template"]["spec"]["containers"][0]["args"]
    (given,) = [each.partition("=")[2] for each in arguments if each.startswith("--metrics-peers=")]
    assert json.loads(given) == peers
