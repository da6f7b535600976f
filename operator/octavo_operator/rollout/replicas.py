"""How many replicas, and which ones go: one writer of the Deployment's replicas, chosen by the mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo_operator.api.v1alpha1 import Spec
from octavo_operator.observe.pods import Pod, rfc3339
from octavo_protocol import names

# The ReplicaSet controller must have seen the marks before it chooses, or it takes other pods.
MARK_SECONDS = 2.0
VICTIM_COST = "-1000"


@dataclass(frozen=True, slots=True)
class Mark:
    """Annotations to set on a pod (None removes one)."""

    pod: str
    annotations: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Scale:
    """`replicas` to write now, marks to set, and seconds until the rest of the way can be gone (None: it is gone)."""

    replicas: int
    marks: tuple[Mark, ...] = ()
    wait: float | None = None


def wanted(spec: Spec, current: int | None, recommended: int | None) -> int:
    """Replicas the mode asks for.

    `current` is the child Deployment's number (None: there is none yet), `recommended` the built-in autoscaler's (None:
    it has not decided since the operator started, and what runs goes on).
    """
    if spec.suspend:
        return 0
    scaling = spec.autoscaling
    if scaling.mode != "Builtin":
        return spec.replicas
    # A new resource starts with one replica even where zero is allowed: it shows whether the spec works.
    start = 1 if current is None else current
    value = start if recommended is None else recommended
    return min(max(value, scaling.min_replicas), scaling.max_replicas)


def scale(
    current: int | None, target: int, pods: Sequence[Pod], revision: str, work: Mapping[str, int], now: float
) -> Scale:
    """The next step from `current` to `target`.

    Fewer replicas take two steps: mark the pods with the least work left (`work`: tokens by pod), and only when the
    marks have been seen lower the number. The mark is on the pod, so a killed operator goes on where it was.
    While pods of another revision are there, the Deployment's rollout decides which pods go.
    """
    active = [pod for pod in pods if pod.active]
    if any(pod.revision != revision for pod in active):
        return Scale(target)
    surplus = max(0, len(active) - target)
    ranked = sorted(active, key=lambda pod: _order(pod, work))
    shrinking = current is not None and current > target
    victims = [pod for pod in ranked[:surplus] if shrinking or pod.marked is not None]
    marks = [
        Mark(pod.name, {names.ANNOTATION_DRAINING: rfc3339(now), names.ANNOTATION_DELETION_COST: VICTIM_COST})
        for pod in victims
        if pod.marked is None
    ]
    marks += [
        Mark(pod.name, {names.ANNOTATION_DRAINING: None, names.ANNOTATION_DELETION_COST: None})
        for pod in active
        if pod.marked is not None and pod not in victims
    ]
    if not shrinking:
        return Scale(target, tuple(marks))
    since = [now if pod.marked is None else pod.marked for pod in victims if pod.ready]
    wait = max((at + MARK_SECONDS - now for at in since), default=0.0)
    if wait > 0:
        return Scale(current or 0, tuple(marks), wait)
    return Scale(target, tuple(marks))


def _order(pod: Pod, work: Mapping[str, int]) -> tuple[bool, bool, bool, int, float, str]:
    """First to go first: what does not serve, what is marked already, what has the least work, what is youngest.

    A pod whose work is not known goes after those whose work is.
    """
    return (pod.ready, pod.marked is None, pod.name not in work, work.get(pod.name, 0), -pod.created, pod.name)
