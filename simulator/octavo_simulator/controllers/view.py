"""The baselines' view of an observation, and their averaging windows. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import fmean

from octavo_operator.autoscale.signals import FRESH_SECONDS
from octavo_operator.autoscale.types import Observation, PodSample
from octavo_protocol.load import LoadReport


@dataclass(frozen=True, slots=True)
class ControllerView:
    """Desired, ready and starting replicas, the reports of ready pods by name, and the gateways' requests.

    `active`: requests in flight and held. `missing`: ready pods without a fresh report.
    """

    current: int
    ready: int
    pending: int
    loads: dict[str, LoadReport]
    active: int
    held: int
    held_tokens: int
    gateways_answering: bool

    @property
    def missing(self) -> int:
        """The ready pods whose report is stale."""
        return self.ready - len(self.loads)


def view(observation: Observation, now: float) -> ControllerView:
    """The baselines' view of an observation."""
    ready = [pod for pod in observation.pods if pod.phase == "ready"]
    traffic = [gateway.traffic for gateway in observation.gateways if gateway.traffic is not None]
    held = sum(one.held for one in traffic)
    return ControllerView(
        current=observation.current,
        ready=len(ready),
        pending=sum(pod.phase in {"pending", "failed"} for pod in observation.pods),
        loads={pod.name: load for pod in ready if (load := _fresh(pod, now)) is not None},
        active=sum(one.in_flight for one in traffic) + held,
        held=held,
        held_tokens=sum(one.held_prompt_tokens for one in traffic),
        gateways_answering=bool(traffic),
    )


def _fresh(pod: PodSample, now: float) -> LoadReport | None:
    return pod.load if now - pod.sampled_at <= FRESH_SECONDS else None


@dataclass(slots=True)
class Window:
    """Samples of the last `seconds`."""

    seconds: float
    _samples: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, now: float, value: float) -> None:
        """Add a sample and drop those that are too old."""
        self._samples.append((now, value))
        while self._samples[0][0] <= now - self.seconds:
            self._samples.popleft()

    def mean(self) -> float:
        """The mean of the available samples; a window that has just begun is not padded with zeros."""
        return fmean(value for _, value in self._samples)

    def highest(self) -> float:
        """The largest sample."""
        return max(value for _, value in self._samples)
