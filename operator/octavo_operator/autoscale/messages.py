"""Decisions in words: what asks for replicas, from which figures, and what is worth a condition. Pure."""

from __future__ import annotations

from octavo_operator.autoscale.signals import STALE_SECONDS, Signals
from octavo_operator.autoscale.state import FAILED_STARTS, DecisionInput


def dominant(inputs: DecisionInput) -> tuple[str, str]:
    """What asks for the most replicas, in a word and a sentence."""
    settings, signals, asked = inputs.settings, inputs.signals, inputs.demand
    capacity = inputs.state.learned.capacity
    most = max(inputs.rate, asked.stock, asked.queue, asked.ttft)
    if capacity is not None and inputs.rate == most:
        why = f"; {asked.surge}" if asked.surge else ""
        return "ArrivalRate", (
            f"{asked.arrivals:.3g} requests per second ask for {asked.rate:.2f} replicas; "
            f"one takes {capacity.rate:.3g} per second{why}"
        )
    if asked.stock == most:
        return "KVOccupancy", (
            f"{signals.stock + signals.held_tokens:.0f} KV tokens pinned, waiting or held; "
            f"one replica takes {settings.kv_target:.0%} of {signals.pod_tokens}"
        )
    if asked.ttft == most:
        return "PromptBacklog", (
            f"{signals.prompts + signals.held_tokens:.0f} prompt tokens are to be computed; "
            f"ttftMilliseconds is {1000 * settings.ttft:.0f}"
        )
    return "QueueDepth", (
        f"{signals.waiting + signals.held:.0f} requests wait or are held; "
        f"{settings.queued_per_replica} per replica is the target"
    )


def described(inputs: DecisionInput, desired: int) -> str:
    """The figures of a decision in one short line."""
    signals, asked, capacity = inputs.signals, inputs.demand, inputs.state.learned.capacity
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
        parts.append(f"{asked.arrivals:.3g} requests/s of {capacity.rate:.3g} per replica")
    terms = {"rate": asked.rate, "kv": asked.stock, "queue": asked.queue, "ttft": asked.ttft}
    told = ", ".join(f"{name} {value:.2f}" for name, value in terms.items() if value or name != "ttft")
    return f"{', '.join(parts)}, demand by {told}: {inputs.observation.current} → {desired}"


def notice(inputs: DecisionInput, reason: str, message: str) -> tuple[str, str] | None:
    """What lasts and is worth a condition: the worst of it, as a word and a sentence."""
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
        return "MetricsPartial", f"{silent(signals)}: taken to be full"
    return None


def silent(signals: Signals) -> str:
    """The pods that say nothing."""
    return f"{signals.missing} of {signals.ready} ready pods gave no load report"


def failing(signals: Signals) -> str:
    """The replicas that do not start."""
    return f"the newest {signals.failed_starts} replicas did not start, see status.failures"
