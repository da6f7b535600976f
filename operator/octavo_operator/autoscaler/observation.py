"""From pods and reports to the policy's input and the status' load. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.api.v1alpha1 import Spec
from octavo_operator.autoscale.schedule import floor
from octavo_operator.autoscale.signals import STALE_SECONDS
from octavo_operator.autoscale.types import Decision, GatewaySample, Observation, Phase, PodSample, ScalingSettings
from octavo_operator.metrics.state import AutoscalerEstimates
from octavo_operator.observe.canary_analysis import AnalysisSample, TrackAnswers
from octavo_operator.observe.diagnosis import HOPELESS
from octavo_operator.observe.pods import Pod
from octavo_operator.status.input import AdapterReplicas, Load
from octavo_protocol.load import CanaryTraffic, GatewayReport, LoadReport, ModelTraffic, TrackTraffic

IDLE_SECONDS = 900
# The assumed start time of a replica until one was observed.
COLD_START_SECONDS = 60.0

Reports = Mapping[str, tuple[float, LoadReport]]


@dataclass(frozen=True, slots=True)
class GatewayReplica:
    """One gateway replica; `report` is None if its last poll failed."""

    name: str
    ip: str = ""
    report: GatewayReport | None = None
    sampled_at: float = 0.0


def policy_settings(spec: Spec, now: float, cold_start: float | None = None) -> ScalingSettings:
    """The policy's settings from `spec.autoscaling` at Unix time `now`; `cold_start`: measured earlier, in seconds."""
    least = floor(spec.autoscaling, now)
    scaling, up, down = spec.autoscaling, spec.autoscaling.scale_up, spec.autoscaling.scale_down
    return ScalingSettings(
        min_replicas=least.replicas,
        minimum=least.field,
        fallback=scaling.fallback_replicas or 0,
        max_replicas=scaling.max_replicas,
        kv_target=scaling.targets.kv_occupancy_percent / 100,
        queued_per_replica=scaling.targets.queued_requests_per_replica,
        up_stabilization=up.stabilization_seconds,
        up_max_step=up.max_replicas_per_step,
        up_period=up.period_seconds,
        down_stabilization=down.stabilization_seconds,
        down_max_step=down.max_replicas_per_step,
        down_period=down.period_seconds,
        idle_to_zero=scaling.idle_seconds_to_zero or IDLE_SECONDS,
        overdue_seconds=spec.probes.startup_timeout_seconds,
        ttft=(scaling.targets.ttft_milliseconds or 0) / 1000,
        tpot=(scaling.targets.tpot_milliseconds or 0) / 1000,
        cold_start=min(max(cold_start or COLD_START_SECONDS, 1.0), spec.probes.startup_timeout_seconds),
    )


def observation(
    owner: LLMDeployment,
    pods: Iterable[Pod],
    reports: Reports,
    gateways: Iterable[GatewayReplica],
    replicas: int,
    *,
    wake: bool,
) -> Observation:
    """The policy's input from pods, reports and gateways."""
    samples = []
    for pod in _without_surge(tuple(pods), replicas):
        at, report = reports.get(pod.name, (0.0, None))
        samples.append(PodSample(pod.name, _phase(pod), pod.created, report, at))
    gateway_samples = tuple(
        GatewaySample(
            gateway.name,
            _traffic(owner, gateway),
            gateway.sampled_at,
            gateway.report.start_time if gateway.report else 0.0,
        )
        for gateway in gateways
    )
    return Observation(current=replicas, pods=tuple(samples), gateways=gateway_samples, wake=wake)


def summary(
    owner: LLMDeployment, pods: Iterable[Pod], reports: Reports, gateways: Iterable[GatewayReplica], now: float
) -> Load:
    """The load of the status: sums over the serving pods."""
    pods = tuple(pods)
    fresh = {name: report for name, (at, report) in reports.items() if now - at <= STALE_SECONDS}
    serving = [fresh[pod.name] for pod in pods if pod.ready and not pod.terminating and pod.name in fresh]
    total = sum(report.blocks_total for report in serving)
    traffic = [_traffic(owner, gateway) for gateway in gateways]
    return Load(
        kv_occupancy=sum(report.blocks_pinned for report in serving) / total if total else None,
        running=sum(report.running for report in serving),
        queued=sum(report.waiting for report in serving),
        held=sum(model.held for model in traffic if model is not None),
        work={name: report.blocks_pinned * report.block_size + report.waiting_tokens for name, report in fresh.items()},
        kv_tokens=serving[0].blocks_total * serving[0].block_size if serving else None,
        cold_start=_cold_start(pods, fresh),
        evidence=_evidence(model.canary for model in traffic if model is not None and model.canary is not None),
        adapters=_adapters(
            {pod.name: fresh[pod.name] for pod in pods if pod.ready and pod.active and pod.name in fresh}
        ),
    )


def _adapters(serving: Mapping[str, LoadReport]) -> dict[tuple[str, str], AdapterReplicas]:
    """The replicas that have each adapter, by its name and source."""
    ready: Counter[tuple[str, str]] = Counter()
    failures: dict[tuple[str, str], dict[str, str]] = {}
    for pod, report in sorted(serving.items()):
        for adapter in report.adapters:
            key = (adapter.name, adapter.source)
            ready[key] += adapter.state not in ("loading", "failed")
            failed = failures.setdefault(key, {})
            if adapter.failure:
                failed[pod] = adapter.failure
    return {key: AdapterReplicas(count, failures[key]) for key, count in ready.items()}


def estimates(decision: Decision) -> AutoscalerEstimates:
    """The estimates behind a decision, for metrics."""
    demanded, known = decision.demand, decision.state.learned
    model = known.fit.model
    step = {}
    if model is not None:
        step = {"base": model.base, "prefill": model.prefill, "row": model.row, "context": model.context}
    return AutoscalerEstimates(
        demand={"rate": demanded.rate, "stock": demanded.stock, "queue": demanded.queue, "prompts": demanded.ttft},
        arrivals=demanded.arrivals,
        dispersion=demanded.dispersion,
        cold_start=demanded.cold_start,
        surge=bool(demanded.surge),
        capacity=known.capacity.rate if known.capacity else None,
        step=step,
    )


def _evidence(counted: Iterable[CanaryTraffic]) -> dict[str, AnalysisSample]:
    """The sums of all gateways' canary counts, by step."""
    sums: dict[str, AnalysisSample] = {}
    for one in counted:
        known = sums.get(one.step, AnalysisSample())
        sums[one.step] = AnalysisSample(_added(known.stable, one.stable), _added(known.canary, one.canary))
    return sums


def _added(known: TrackAnswers, more: TrackTraffic) -> TrackAnswers:
    ttft = tuple(a + b for a, b in zip_longest(known.ttft, more.ttft, fillvalue=0))
    return TrackAnswers(known.requests + more.requests, known.errors + more.errors, ttft)


def _cold_start(pods: Iterable[Pod], reports: Mapping[str, LoadReport]) -> int | None:
    """Cold start seconds: from creation to readiness of the newest ready pod that never restarted."""
    measured = [
        (pod.created, reports[pod.name])
        for pod in pods
        if pod.ready and not pod.restarts and pod.name in reports and reports[pod.name].cold_start
    ]
    if not measured:
        return None
    created, report = max(measured, key=lambda pair: pair[0])
    return max(0, round(report.start_time + report.cold_start - created))


def _without_surge(pods: tuple[Pod, ...], replicas: int) -> tuple[Pod, ...]:
    """The pods without the unready surge pods of a rollout.

    Surge pods are no supply, because the pods that they will replace still serve. And a new spec that fails must not
    count as failing replicas.
    """
    surge = max(0, sum(pod.active for pod in pods) - replicas)
    waiting = sorted((pod for pod in pods if pod.active and not pod.ready), key=lambda pod: -pod.created)
    extra = {pod.name for pod in waiting[:surge]}
    return tuple(pod for pod in pods if pod.name not in extra)


def _phase(pod: Pod) -> Phase:
    if pod.terminating:
        return "draining"
    if pod.ready:
        return "ready"
    hopeless = pod.finished or any(problem.reason in HOPELESS for problem in pod.problems)
    return "failed" if hopeless else "pending"


def _traffic(owner: LLMDeployment, gateway: GatewayReplica) -> ModelTraffic | None:
    models = gateway.report.models if gateway.report else []
    return next((m for m in models if (m.namespace, m.name) == (owner.namespace, owner.name)), None)
