"""The parts of Grafana dashboards that Octavo uses: panels and their queries."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL with Grafana's variables replaced; `legend` contains `{{label}}`."""

    expression: str
    legend: str

    def name(self, labels: Mapping[str, str]) -> str:
        """The legend's text for a series."""
        return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), self.legend)


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph. `unit` is Grafana's name of the unit."""

    title: str
    unit: str
    queries: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard file."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


def load(path: Path, rate_interval: str) -> Dashboard:
    """A dashboard with all variables set to match everything; `rate_interval`, such as `1m`, is the range of rates."""
    board = json.loads(path.read_text(encoding="utf-8"))
    values = {"__rate_interval": rate_interval, **{each["name"]: ".*" for each in board["templating"]["list"]}}

    def query(target: Mapping[str, str]) -> Query:
        return Query(re.sub(r"\$(\w+)", lambda found: values[found[1]], target["expr"]), target["legendFormat"])

    panels = tuple(
        Panel(panel["title"], panel["fieldConfig"]["defaults"]["unit"], tuple(map(query, panel["targets"])))
        for panel in board["panels"]
    )
    return Dashboard(board["uid"], board["title"], panels)
