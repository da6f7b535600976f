"""The input of the status: the resource, its pods, and the autoscaler's view of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo_operator.api.base import Json
from octavo_operator.api.resource import LLMDeployment, SpecRefusal
from octavo_operator.observe.adapters import InspectedAdapter
from octavo_operator.observe.canary_analysis import AnalysisSample
from octavo_operator.observe.diagnosis import REASONS, creation_problems
from octavo_operator.observe.fit import MemoryFit
from octavo_operator.observe.inspection import Inspection, InspectionFailed, Model, problems
from octavo_operator.observe.pods import Pod, Problem
from octavo_operator.rollout.plan import Progress


@dataclass(frozen=True, slots=True)
class AdapterReplicas:
    """Ready replicas that have an adapter, and why others do not, by pod."""

    ready: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Load:
    """Sums over the sampled replicas. `kv_occupancy` is 0..1, None without a sample.

    `work`: outstanding tokens of each pod, by pod name. `kv_tokens` of a replica and `cold_start` seconds are measured;
    None until then. `evidence`: the gateways' counts for a step of a canary, by the step's name. `adapters`: by name
    and source.
    """

    kv_occupancy: float | None = None
    running: int = 0
    queued: int = 0
    held: int = 0
    work: Mapping[str, int] = field(default_factory=dict)
    kv_tokens: int | None = None
    cold_start: int | None = None
    evidence: Mapping[str, AnalysisSample] = field(default_factory=dict)
    adapters: Mapping[tuple[str, str], AdapterReplicas] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """One change of the desired replicas by the autoscaler, at Unix second `time`."""

    time: float
    before: int
    after: int
    reason: str
    inputs: str


@dataclass(frozen=True, slots=True)
class Scaling:
    """The autoscaler's latest decision, and its changes since the operator started.

    `notice`: a lasting state, as condition reason and message.
    """

    desired: int
    reason: str
    message: str
    changes: tuple[ReplicaChange, ...] = ()
    notice: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class StatusInput:
    """The complete input of the status. `model` is None for pods that were created without model inspection.

    `unfit`: why no pods are created for the model and this spec.
    """

    owner: LLMDeployment
    pods: tuple[Pod, ...]
    target: int
    url: str
    deployment: Json | None = None
    load: Load | None = None
    scaling: Scaling | None = None
    progress: Progress | None = None
    current_revision: str | None = None
    conflict: str = ""
    refused: str = ""
    inspection: Inspection | None = None
    model: Model | None = None
    adapters: tuple[InspectedAdapter, ...] = ()
    fit: MemoryFit = MemoryFit()  # noqa: RUF009 - frozen
    unfit: SpecRefusal | None = None

    @property
    def active(self) -> list[Pod]:
        """The pods that count as replicas."""
        return [pod for pod in self.pods if pod.active]

    @property
    def problems(self) -> list[Problem]:
        """Problems of pods, or of their creation, worst first.

        A finished pod exists until garbage collection: it is left out once enough other replicas are ready.
        """
        enough = sum(pod.ready for pod in self.active) >= self.target
        shown = [pod for pod in self.pods if not (pod.terminating or (pod.finished and enough))]
        found = [*creation_problems(self.deployment), *(problem for pod in shown for problem in pod.problems)]
        if isinstance(self.model, InspectionFailed):
            found += problems(self.inspection, self.model)
        return sorted(found, key=lambda p: (_rank(p.reason), -p.last, p.pod))


def _rank(reason: str) -> int:
    return REASONS.index(reason) if reason in REASONS else len(REASONS)
