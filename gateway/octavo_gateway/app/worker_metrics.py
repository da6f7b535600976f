"""Merges the reports and metrics of several workers into those of one gateway. No I/O.

Counters of an ended worker are kept: until the parent restarts the sums only grow, as readers of reports and metrics
expect. Counts of a worker after its last poll are lost with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from octavo_protocol.load import CanaryTraffic, GatewayReport, ModelTraffic, TrackTraffic

# Gauges that are summed over the workers. All others are equal in every worker, or the worst value counts.
_SUMMED = {"octavo_gateway_in_flight_requests", "octavo_gateway_held_requests", "octavo_gateway_held_by_priority"}
_LEAST = {"octavo_gateway_key_file_valid"}
_LEAST_STATES = {"heard", "accepting"}
_COUNTING = {"counter", "histogram"}

Series = tuple[str, tuple[tuple[str, str], ...]]
Key = tuple[str, str]


@dataclass(slots=True)
class WorkerTotals:
    """Totals over all workers: reports and metrics of the running ones by number. `start_time`: of the parent."""

    start_time: float
    _sequence: int = 0
    _reports: dict[int, GatewayReport] = field(default_factory=dict)
    _families: dict[int, list[Metric]] = field(default_factory=dict)
    _past_models: dict[Key, ModelTraffic] = field(default_factory=dict)
    _past_series: Counter[Series] = field(default_factory=Counter)

    def update(self, worker: int, report: GatewayReport, exposition: str) -> None:
        """Replace a worker's report and metrics."""
        self._reports[worker] = report
        self._families[worker] = list(text_string_to_metric_families(exposition))

    def ended(self, worker: int) -> None:
        """Drop an ended worker's requests, and keep its counters."""
        report = self._reports.pop(worker, None)
        for model in report.models if report else ():
            over = replace(model, in_flight=0, held=0, held_prompt_tokens=0, oldest_hold=0.0, pods={})
            key = (model.namespace, model.name)
            past = self._past_models.get(key)
            self._past_models[key] = _added([past, over]) if past else over
        for family in self._families.pop(worker, []):
            if family.type in _COUNTING:
                self._past_series.update({_series(sample): sample.value for sample in _lasting(family)})

    def report(self) -> GatewayReport:
        """The sum over all workers, for the operator.

        A model is listed if every worker with a model table lists it: only then do all workers hold requests for it.
        """
        self._sequence += 1
        read = [{(m.namespace, m.name): m for m in each.models} for each in self._reports.values() if each.models]
        listed = set.intersection(*(set(each) for each in read)) if read else set()
        models = []
        for key in sorted(listed):
            past = self._past_models.get(key)
            models.append(_added([each[key] for each in read] + ([past] if past else [])))
        return GatewayReport(sequence=self._sequence, start_time=self.start_time, models=models)

    def exposition(self) -> bytes:
        """All metrics in the Prometheus text format."""
        registry = CollectorRegistry()
        registry.register(_Collected(self._merged()))
        return generate_latest(registry)

    def _merged(self) -> list[Metric]:
        found: dict[str, Metric] = {}
        values: dict[str, dict[Series, float]] = {}
        for family in (family for families in self._families.values() for family in families):
            found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            into = values.setdefault(family.name, {})
            for sample in _lasting(family):
                series = _series(sample)
                if series not in into:
                    into[series] = sample.value + (self._past_series[series] if family.type in _COUNTING else 0.0)
                elif family.type in _COUNTING or family.name in _SUMMED:
                    into[series] += sample.value
                else:
                    least = family.name in _LEAST or sample.labels.get("state") in _LEAST_STATES
                    into[series] = (min if least else max)(into[series], sample.value)
        for name, metric in found.items():
            own = {series[0] for series in values[name]}
            if metric.type in _COUNTING:
                past = {series: value for series, value in self._past_series.items() if series[0] in own}
                values[name] = past | values[name]
            metric.samples = [Sample(series[0], dict(series[1]), value) for series, value in values[name].items()]
        return [metric for metric in found.values() if metric.samples]


class _Collected(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _series(sample: Sample) -> Series:
    return sample.name, tuple(sorted(sample.labels.items()))


def _lasting(family: Metric) -> list[Sample]:
    """Samples without the creation times of series, because a sum of times has no meaning."""
    return [sample for sample in family.samples if not sample.name.endswith("_created")]


def _added(traffic: Sequence[ModelTraffic]) -> ModelTraffic:
    """The traffic of one model over several workers: the sums of the counts, and the maximum of each time."""
    first = traffic[0]
    pods: Counter[str] = Counter()
    for each in traffic:
        pods.update(each.pods)
    return replace(
        first,
        arrivals=sum(each.arrivals for each in traffic),
        arrival_prompt_tokens=sum(each.arrival_prompt_tokens for each in traffic),
        in_flight=sum(each.in_flight for each in traffic),
        held=sum(each.held for each in traffic),
        held_prompt_tokens=sum(each.held_prompt_tokens for each in traffic),
        oldest_hold=max(each.oldest_hold for each in traffic),
        last_arrival=max(each.last_arrival for each in traffic),
        pods=dict(pods),
        canary=_canary(first.canary, [each.canary for each in traffic if each.canary]),
    )


def _canary(step: CanaryTraffic | None, all_of_them: Sequence[CanaryTraffic]) -> CanaryTraffic | None:
    """Sums evidence of the same step only: a worker with an older table still counts for the old step."""
    if step is None:
        return None
    same = [each for each in all_of_them if each.step == step.step]
    return CanaryTraffic(
        step=step.step,
        stable=_track([each.stable for each in same]),
        canary=_track([each.canary for each in same]),
    )


def _track(tracks: Sequence[TrackTraffic]) -> TrackTraffic:
    counted = [track.ttft for track in tracks if track.ttft]
    return TrackTraffic(
        requests=sum(track.requests for track in tracks),
        errors=sum(track.errors for track in tracks),
        ttft=[sum(column) for column in zip(*counted, strict=True)],
    )
