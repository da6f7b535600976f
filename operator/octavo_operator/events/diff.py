"""Events for `kubectl describe`: the differences between two statuses, each reported once."""

from __future__ import annotations

import re
from dataclasses import dataclass

from octavo_operator.api.base import Json

# Reasons of Ready that need attention: events of type Warning.
_CALM = frozenset({"ResolvingModel", "Starting", "RollingOut", "Suspended", "ScaledToZero"})
# Rollout transitions with an event, and whether it is a warning.
_TURNS = {"SurgeUnschedulable": True, "Canary": False, "CanaryPromoted": False, "CanaryFailed": True}


@dataclass(frozen=True, slots=True)
class Event:
    """One event: `warning` or normal, its reason and message."""

    warning: bool
    reason: str
    message: str


_WARNINGS = frozenset(
    {"ProgressDeadlineExceeded", "MetricsUnavailable", "StartsFail", "TargetsInfeasible", "ScalingLimited"}
)


def event_diff(before: Json, after: Json) -> tuple[Event, ...]:
    """The events for the change from status `before` to `after`."""
    found: list[Event] = []
    old, new = _ready(before), _ready(after)
    if (old.get("status"), old.get("reason")) != (new["status"], new["reason"]):
        warning = new["status"] != "True" and new["reason"] not in _CALM
        found.append(Event(warning, new["reason"], new["message"]))
    found += _rollout(_condition(before, "Progressing"), _condition(after, "Progressing"))
    found += _warnings(before, after, {item.reason for item in found})
    found += _adapters(before, after)
    known = before.get("autoscaling", {}).get("history", [])
    for change in after.get("autoscaling", {}).get("history", []):
        if change not in known:
            reason = "ScaledUp" if change["to"] > change["from"] else "ScaledDown"
            text = f"{change['from']} to {change['to']} replicas ({change['reason']}): {change['inputs']}"
            found.append(Event(False, reason, text))
    return tuple(found)


def _adapters(before: Json, after: Json) -> list[Event]:
    """Adapters that replicas can use now, and those that failed, on all replicas or on some; each reason once."""
    known = {adapter["name"]: adapter for adapter in before.get("adapters", ())}
    found: list[Event] = []
    for adapter in after.get("adapters", ()):
        old, state = known.get(adapter["name"], {}), adapter["state"]
        changed = (old.get("state"), old.get("revision")) != (state, adapter.get("revision"))
        if state == "Ready" and changed:
            found.append(Event(False, "AdapterReady", f"replicas can use adapter {adapter['name']}"))
        failure = _failure(adapter)
        if failure and (failure != _failure(old) or (changed and state == "Failed")):
            found.append(Event(True, "AdapterFailed", f"adapter {adapter['name']}: {adapter['message']}"))
    return found


def _failure(adapter: Json) -> str:
    """Why an adapter failed, on whichever pod; empty if it has not. One that is ready may have failed on a pod."""
    text: str = adapter.get("message", "")
    state = adapter.get("state")
    on_pod = re.match(r"pod \S+: ", text)
    if state == "Failed" or (state == "Ready" and on_pod):
        return text[on_pod.end() :] if on_pod else text
    return ""


def _warnings(before: Json, after: Json, reported: set[str]) -> list[Event]:
    """New reasons of failures and conditions, each once, however many pods and conditions have it."""
    known = {failure["reason"] for failure in before.get("failures", ())}
    known |= {condition["reason"] for condition in before.get("conditions", ()) if _bad(condition)}
    found: list[Event] = []
    for failure in after.get("failures", ()):
        pod = f"pod {failure['pod']}: " if "pod" in failure else ""
        found.append(Event(True, failure["reason"], pod + failure["message"]))
    found += [Event(True, c["reason"], c["message"]) for c in after["conditions"] if _bad(c)]
    unreported: dict[str, Event] = {}
    for item in found:
        if item.reason not in reported | known:
            unreported.setdefault(item.reason, item)
    return list(unreported.values())


def _bad(condition: Json) -> bool:
    """True if a condition other than Ready, which is reported anyway, needs attention."""
    if condition["type"] == "Degraded":
        return bool(condition["status"] == "True")
    if condition["type"] in ("SpecValid", "ModelResolved", "Scheduled"):
        return bool(condition["status"] == "False")
    return condition["reason"] in _WARNINGS


def _rollout(old: Json, new: Json) -> list[Event]:
    """Rollout transitions; a rollback is reported by Ready."""
    reason = new.get("reason", "")
    if reason not in _TURNS or (old.get("reason"), old.get("message")) == (reason, new["message"]):
        return []
    return [Event(_TURNS[reason], reason, new["message"])]


def _ready(status: Json) -> Json:
    return _condition(status, "Ready")


def _condition(status: Json, name: str) -> Json:
    found: Json = next((c for c in status.get("conditions", []) if c["type"] == name), {})
    return found
