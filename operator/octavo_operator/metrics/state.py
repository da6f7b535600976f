"""Conditions, failures and load of every LLMDeployment as metrics: for alerts, dashboards and external scalers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from octavo_operator.api.base import Json
from octavo_operator.status.input import Load

_NAME = ("namespace", "name")
_LOADS = {
    "octavo_kv_occupancy_ratio": ("Share of the KV cache blocks that live requests hold, 0..1.", "kv_occupancy"),
    "octavo_running_requests": ("Running sequences.", "running"),
    "octavo_queued_requests": ("Sequences that wait in replicas.", "queued"),
    "octavo_held_requests": ("Requests held by gateways until a replica can take them.", "held"),
}


@dataclass(frozen=True, slots=True)
class AutoscalerEstimates:
    """Estimates of the built-in autoscaler: `demand` in replicas and `step` in seconds by term, rates per second.

    `capacity` and `step` are those of one replica, and unset until learned.
    """

    demand: Mapping[str, float]
    arrivals: float
    dispersion: float
    cold_start: float
    surge: bool
    capacity: float | None = None
    step: Mapping[str, float] = field(default_factory=dict)


_ESTIMATES = {
    "octavo_autoscaler_arrivals_per_second": (
        "Forecast requests per second when a replica started now is ready.",
        "arrivals",
    ),
    "octavo_autoscaler_dispersion": ("Index of dispersion of arrivals in 10 s; 1 for a Poisson process.", "dispersion"),
    "octavo_autoscaler_cold_start_seconds": ("90th percentile of replica start time in seconds.", "cold_start"),
    "octavo_autoscaler_surge": ("1 during a surge, when the load of the last seconds counts in full.", "surge"),
    "octavo_autoscaler_replica_requests_per_second": (
        "Estimated capacity of one replica in requests per second.",
        "capacity",
    ),
}
_TERMS = {
    "octavo_autoscaler_demand_replicas": ("Replicas needed, by the term that needs them.", "demand"),
    "octavo_autoscaler_step_seconds": (
        "Step cost in seconds: fixed, and per prompt token, row and context token.",
        "step",
    ),
}


@dataclass(frozen=True, slots=True)
class _State:
    """Conditions as (type, status, reason), failing pods by reason."""

    conditions: tuple[tuple[str, str, str], ...]
    failures: Mapping[str, int]


class StateMetrics(Collector):
    """One series per current condition and per current failure reason.

    Series are built at each scrape from plain values: thousands of resources take kilobytes, without a gauge object per
    series. The scrape runs in its own thread, so `collect` iterates over copies.
    """

    def __init__(self) -> None:
        self._states: dict[tuple[str, str], _State] = {}
        self._loads: dict[tuple[str, str], Load] = {}
        self._estimates: dict[tuple[str, str], AutoscalerEstimates] = {}

    def status(self, namespace: str, name: str, status: Json) -> None:
        """Set the current status of one resource."""
        reasons = [failure["reason"] for failure in status.get("failures", ())]
        self._states[namespace, name] = _State(
            tuple((c["type"], c["status"], c["reason"]) for c in status["conditions"]),
            {reason: reasons.count(reason) for reason in reasons},
        )

    def load(self, namespace: str, name: str, load: Load) -> None:
        """Set the current load of one resource."""
        self._loads[namespace, name] = load

    def estimates(self, namespace: str, name: str, estimates: AutoscalerEstimates | None) -> None:
        """Set the estimates of the built-in autoscaler; None in other modes."""
        if estimates is None:
            self._estimates.pop((namespace, name), None)
        else:
            self._estimates[namespace, name] = estimates

    def forget(self, namespace: str, name: str) -> None:
        """Remove the series of a deleted resource."""
        self._states.pop((namespace, name), None)
        self._loads.pop((namespace, name), None)
        self._estimates.pop((namespace, name), None)

    def collect(self) -> Iterator[Metric]:
        """All series."""
        conditions = GaugeMetricFamily(
            "octavo_condition",
            "1 for the current state of each condition.",
            labels=(*_NAME, "type", "status", "reason"),
        )
        failures = GaugeMetricFamily(
            "octavo_failures", "Failures listed in status.failures, by reason.", labels=(*_NAME, "reason")
        )
        for key, state in list(self._states.items()):
            for condition in state.conditions:
                conditions.add_metric((*key, *condition), 1)
            for reason, count in state.failures.items():
                failures.add_metric((*key, reason), count)
        yield conditions
        yield failures
        for metric, (text, what) in _LOADS.items():
            family = GaugeMetricFamily(metric, text, labels=_NAME)
            for key, load in list(self._loads.items()):
                value = getattr(load, what)
                if value is not None:
                    family.add_metric(key, value)
            yield family
        yield from self._scaling()

    def _scaling(self) -> Iterator[Metric]:
        estimates = list(self._estimates.items())
        for metric, (text, what) in _ESTIMATES.items():
            family = GaugeMetricFamily(metric, text, labels=_NAME)
            for key, known in estimates:
                value = getattr(known, what)
                if value is not None:
                    family.add_metric(key, float(value))
            yield family
        for metric, (text, what) in _TERMS.items():
            family = GaugeMetricFamily(metric, text, labels=(*_NAME, "term"))
            for key, known in estimates:
                for term, value in getattr(known, what).items():
                    family.add_metric((*key, term), value)
            yield family
