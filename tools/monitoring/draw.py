"""Draws a dashboard from Prometheus' query results, for the documentation, without Grafana."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from monitoring.dashboards import Dashboard, Panel, Query

Results = Mapping[Query, Sequence[Mapping[str, Any]]]
_COLUMNS = 3
_LEGEND_LINES = 6
# Grafana's unit names, and the labels of the axes.
_UNITS = {"short": "", "percentunit": "share", "reqps": "per second"}


def draw(dashboard: Dashboard, results: Results, start: float) -> bytes:
    """An SVG. `results` are matrices by query; the time axis counts minutes from `start`."""
    import matplotlib as mpl  # noqa: PLC0415 - loading takes a second, and only this function needs it

    mpl.use("agg")
    mpl.rcParams.update({"svg.hashsalt": "octavo", "font.size": 7, "axes.titlesize": 8, "svg.fonttype": "none"})
    from matplotlib import pyplot as plt  # noqa: PLC0415

    rows = math.ceil(len(dashboard.panels) / _COLUMNS)
    figure, axes = plt.subplots(rows, _COLUMNS, figsize=(12, 2.4 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(dashboard.panels) :]:
        axis.axis("off")
    for panel, axis in zip(dashboard.panels, axes.flat, strict=False):
        _panel(axis, panel, results, start)
    figure.suptitle(dashboard.title, fontsize=10)
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    plt.close(figure)
    return out.getvalue()


def _panel(axis: Any, panel: Panel, results: Results, start: float) -> None:
    axis.set_title(panel.title, loc="left")
    for query in panel.queries:
        for series in results[query]:
            points = [((moment - start) / 60, float(value)) for moment, value in series["values"]]
            axis.plot(*zip(*points, strict=True), linewidth=0.8, label=query.name(series["metric"]))
    axis.set_ylabel(_UNITS.get(panel.unit, panel.unit))
    axis.set_xlabel("minutes")
    axis.grid(visible=True, linewidth=0.3)
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        axis.legend(handles[:_LEGEND_LINES], labels[:_LEGEND_LINES], fontsize=5, loc="upper left", framealpha=0.6)
