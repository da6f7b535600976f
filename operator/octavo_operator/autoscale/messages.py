"""Texts of decisions: the dominant demand, the input figures, and the notice for a condition. Pure."""

from __future__ import annotations

from octavo_operator.autoscale.signals import STALE_SECONDS, Signals
from octavo_operator.autoscale.state import FAILED_STARTS, DecisionInput


def dominant(inputs: DecisionInput) -> tuple[str, str]:
    """Reason and message of the demand term that needs the most replicas."""
    settings, signals, demanded = inputs.settings, inputs.signals, inputs.demand
    capacity = inputs.state.learned.capacity
    most = max(inputs.rate, demanded.stock, demanded.queue, demanded.ttft)
    if capacity is not None and inputs.rate == most:
        why = f"; {demanded.surge}" if demanded.surge else ""
        return "ArrivalRate", (
            f"{demanded.arrivals:.3g} requests per second need {demanded.rate:.2f} replicas; "
            f"one replica serves {capacity.rate:.3g} per second{why}"
        )
    if demanded.stock == most:
        return "KVOccupancy", (
            f"{signals.stock + signals.held_tokens:.0f} KV tokens are pinned, waiting or held; "
            f"the target per replica is {settings.kv_target:.0%} of {signals.pod_tokens}"
        )
    if demanded.ttft == most:
        return "PromptBacklog", (
            f"{signals.prompts + signals.held_tokens:.0f} prompt tokens wait for prefill; "
            f"ttftMilliseconds is {1000 * settings.ttft:.0f}"
        )
    return "QueueDepth", (
        f"{signals.waiting + signals.held:.0f} requests wait or are held; "
        f"the target per replica is {settings.queued_per_replica}"
    )


def described(inputs: DecisionInput, desired: int) -> str:
    """The input figures of a decision in one short line."""
    signals, demanded, capacity = inputs.signals, inputs.demand, inputs.state.learned.capacity
    share = f" ({signals.pinned_blocks / signals.total_blocks:.0%})" if signals.total_blocks else ""
    parts = [f"kv {signals.pinned_blocks}/{signals.total_blocks} blocks pinned{share}"]
    parts += [f"{signals.running:.0f} running", f"{signals.waiting:.0f} waiting"]
    optional = {
        "held": signals.held,
        "ready": signals.ready,
        "pending": signals.pending,
        "broken": signals.broken,
        "draining": signals.draining,
        "without report": signals.missing,
    }
    parts += [f"{count} {what}" for what, count in optional.items() if count or what == "ready"]
    if capacity is not None:
        parts.append(f"{demanded.arrivals:.3g} requests/s of {capacity.rate:.3g} per replica")
    terms = {"rate": demanded.rate, "kv": demanded.stock, "queue": demanded.queue, "ttft": demanded.ttft}
    by_term = ", ".join(f"{name} {value:.2f}" for name, value in terms.items() if value or name != "ttft")
    return f"{', '.join(parts)}, demand by {by_term}: {inputs.observation.current} → {desired}"


def notice(inputs: DecisionInput, reason: str, message: str) -> tuple[str, str] | None:
    """Reason and message of the worst lasting state, for a condition; None if there is none."""
    signals, settings, known = inputs.signals, inputs.settings, inputs.state.learned
    if reason in ("MetricsUnavailable", "MetricsPartial"):
        return reason, message
    if signals.failed_starts >= FAILED_STARTS:
        return "StartsFail", failing(signals)
    if known.capacity is not None and not known.capacity.feasible:
        return "TargetsInfeasible", (
            f"spec.autoscaling.targets.tpotMilliseconds: found {1000 * settings.tpot:.0f}, but a token takes "
            f"{1000 * known.capacity.step:.0f} ms with one request alone; a higher target or a faster replica is needed"
        )
    if reason == "ScalingLimited":
        return reason, f"spec.autoscaling.maxReplicas: more than {settings.max_replicas} replicas are needed"
    since = inputs.state.missing_since
    if since is not None and inputs.now - since >= STALE_SECONDS:
        return "MetricsPartial", f"{silent(signals)}: assumed to be full"
    return None


def silent(signals: Signals) -> str:
    """Text about pods that give no report."""
    return f"{signals.missing} of {signals.ready} ready pods gave no load report"


def failing(signals: Signals) -> str:
    """Text about replicas that fail to start."""
    return f"the newest {signals.failed_starts} replicas did not start, see status.failures"
