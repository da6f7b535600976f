"""How many replicas to run, and which pods to remove. The autoscaling mode decides who sets the number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo_operator.api.v1alpha1 import Spec
from octavo_operator.observe.pods import Pod, rfc3339
from octavo_protocol import names

# The ReplicaSet controller must see the deletion costs before it picks the pods to delete.
DRAIN_NOTICE_SECONDS = 2.0
VICTIM_COST = "-1000"


@dataclass(frozen=True, slots=True)
class PodAnnotations:
    """Annotations to set on a pod (None removes one)."""

    pod: str
    annotations: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Scale:
    """`replicas` to write now, annotations to set, and seconds until the next step (None: there is none)."""

    replicas: int
    drains: tuple[PodAnnotations, ...] = ()
    wait: float | None = None


def wanted(spec: Spec, current: int | None, recommended: int | None) -> int:
    """Replicas according to the autoscaling mode.

    `current`: replicas of the Deployment (None: there is none yet). `recommended`: replicas of the built-in autoscaler
    (None: no decision since the operator started; `current` stays).
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

    Scaling down takes two steps: annotate the pods with the least work left (`work`: tokens by pod), then, once the
    ReplicaSet controller has seen that, lower `replicas`. The annotations survive a restart of the operator. While pods
    of another revision exist, the Deployment's rollout decides which pods are deleted.
    """
    active = [pod for pod in pods if pod.active]
    if any(pod.revision != revision for pod in active):
        return Scale(target)
    surplus = max(0, len(active) - target)
    ranked = sorted(active, key=lambda pod: _order(pod, work))
    shrinking = current is not None and current > target
    victims = [pod for pod in ranked[:surplus] if shrinking or pod.drain_requested_at is not None]
    drains = [
        PodAnnotations(pod.name, {names.ANNOTATION_DRAINING: rfc3339(now), names.ANNOTATION_DELETION_COST: VICTIM_COST})
        for pod in victims
        if pod.drain_requested_at is None
    ]
    drains += [
        PodAnnotations(pod.name, {names.ANNOTATION_DRAINING: None, names.ANNOTATION_DELETION_COST: None})
        for pod in active
        if pod.drain_requested_at is not None and pod not in victims
    ]
    if not shrinking:
        return Scale(target, tuple(drains))
    since = [now if pod.drain_requested_at is None else pod.drain_requested_at for pod in victims if pod.ready]
    wait = max((at + DRAIN_NOTICE_SECONDS - now for at in since), default=0.0)
    if wait > 0:
        return Scale(current or 0, tuple(drains), wait)
    return Scale(target, tuple(drains))


def _order(pod: Pod, work: Mapping[str, int]) -> tuple[bool, bool, bool, int, float, str]:
    """Sort key, first to delete first: not ready, already draining, least work left, youngest.

    A pod of unknown work comes after those of known work.
    """
    return (
        pod.ready,
        pod.drain_requested_at is None,
        pod.name not in work,
        work.get(pod.name, 0),
        -pod.created,
        pod.name,
    )
