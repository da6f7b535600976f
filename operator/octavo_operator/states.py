"""Conditions, failures and load of every LLMDeployment as metrics: for alerts, dashboards and external scalers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from octavo_operator.api.blocks import Json
from octavo_operator.reconcile.view import Load

_NAME = ("namespace", "name")
_LOADS = {
    "octavo_kv_occupancy_ratio": ("Share of the KV pools that live requests hold, 0..1.", "kv_occupancy"),
    "octavo_running_requests": ("Sequences being computed.", "running"),
    "octavo_queued_requests": ("Sequences waiting in replicas.", "queued"),
    "octavo_held_requests": ("Requests held by gateways until a replica can take them.", "held"),
}


@dataclass(frozen=True, slots=True)
class _State:
    """Conditions as (type, status, reason), failing pods by reason."""

    conditions: tuple[tuple[str, str, str], ...]
    failures: Mapping[str, int]


class States(Collector):
    """One series per condition and per reason of failure that there is now: as many as a status holds, no more.

    Made when asked for, from plain values: thousands of resources cost kilobytes, not a gauge object for each series.
    Asked in a thread of its own: hence the copies.
    """

    def __init__(self) -> None:
        self._states: dict[tuple[str, str], _State] = {}
        self._loads: dict[tuple[str, str], Load] = {}

    def status(self, namespace: str, name: str, status: Json) -> None:
        """The status of one resource as it is now."""
        reasons = [failure["reason"] for failure in status.get("failures", ())]
        self._states[namespace, name] = _State(
            tuple((c["type"], c["status"], c["reason"]) for c in status["conditions"]),
            {reason: reasons.count(reason) for reason in reasons},
        )

    def load(self, namespace: str, name: str, load: Load) -> None:
        """What the replicas of one resource do."""
        self._loads[namespace, name] = load

    def forget(self, namespace: str, name: str) -> None:
        """The resource is gone."""
        self._states.pop((namespace, name), None)
        self._loads.pop((namespace, name), None)

    def collect(self) -> Iterator[Metric]:
        """All series."""
        conditions = GaugeMetricFamily(
            "octavo_condition", "1 for each condition as it is now.", labels=(*_NAME, "type", "status", "reason")
        )
        failures = GaugeMetricFamily("octavo_failures", "What status.failures lists.", labels=(*_NAME, "reason"))
        for key, state in list(self._states.items()):
            for condition in state.conditions:
                conditions.add_metric((*key, *condition), 1)
            for reason, count in state.failures.items():
                failures.add_metric((*key, reason), count)
        yield conditions
        yield failures
        for metric, (text, field) in _LOADS.items():
            family = GaugeMetricFamily(metric, text, labels=_NAME)
            for key, load in list(self._loads.items()):
                value = getattr(load, field)
                if value is not None:
                    family.add_metric(key, value)
            yield family
