"""What reads dashboards and finds targets for the tests does both as Grafana and a PodMonitor would."""

import json
import re
from pathlib import Path
from typing import Any

from monitoring.dashboards import Query, load
from monitoring.discovery import targets


def board(expression: str) -> dict[str, Any]:
    target = {"expr": expression, "legendFormat": "{{model}} p95"}
    panel = {"title": "T", "fieldConfig": {"defaults": {"unit": "s"}}, "targets": [target]}
    return {"uid": "u", "title": "B", "templating": {"list": [{"name": "model"}]}, "panels": [panel]}


def test_everything_is_chosen_and_rates_have_an_interval(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(json.dumps(board('rate(x{model=~"$model"}[$__rate_interval])')))
    (panel,) = load(tmp_path / "b.json", "1m").panels
    assert panel.queries == (Query('rate(x{model=~".*"}[1m])', "{{model}} p95"),)
    assert panel.queries[0].name({"model": "m"}) == "m p95"
    assert panel.queries[0].name({}) == " p95"


def pod(phase: str = "Running", ip: str = "10.0.0.1", labels: dict[str, str] | None = None) -> dict[str, Any]:
    ports = [{"name": "api", "containerPort": 8000}, {"name": "admin", "containerPort": 9000}, {"containerPort": 1}]
    return {
        "metadata": {"namespace": "a", "name": "p", "labels": labels or {}},
        "spec": {"containers": [{"ports": ports}, {}]},
        "status": {"phase": phase, "podIP": ip},
    }


def test_metrics_ports_of_running_pods_are_targets() -> None:
    labels = {"namespace": "a", "pod": "p", "llmdeployment": "m"}
    assert targets([pod(labels={"octavo.dev/llmdeployment": "m"})]) == [
        {"targets": ["10.0.0.1:9000"], "labels": labels}
    ]
    assert targets([pod(phase="Pending"), pod(phase="Succeeded"), pod(ip="")]) == []


def test_the_gateways_dashboard_shows_its_routing_by_metrics_that_there_are() -> None:
    root = Path(__file__).parents[3]
    reference = (root / "docs/reference/metrics.md").read_text()
    known = set(re.findall(r"`(octavo_gateway_\w+)`", reference))
    board = load(root / "charts/octavo/dashboards/octavo-gateway.json", "1m")
    shown = {name for panel in board.panels for query in panel.queries
             for name in re.findall(r"octavo_gateway_\w+", query.expression)}  # fmt: skip
    assert {re.sub("_bucket$", "", name) for name in shown} <= known
    routing = {"routed_requests_total", "routed_against_affinity_total", "prefix_tokens_total"}
    assert {f"octavo_gateway_{name}" for name in routing} <= shown
    # A share needs the same labels on both sides, or it has no value.
    for query in (query for panel in board.panels if panel.unit == "percentunit" for query in panel.queries):
        (one, other) = re.findall(r"sum by \(([\w, ]+)\)", query.expression)
        assert one == other
