"""The traffic report of one model, by which the operator scales it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from octavo_gateway.discovery.endpoints import Deployment
from octavo_gateway.pool.canary_stats import CanaryStats
from octavo_gateway.pool.replica import Replica
from octavo_gateway.queueing.hold_queue import HoldQueue
from octavo_protocol.load import ModelTraffic


@dataclass(slots=True)
class TrafficCounters:
    """Counts requests that need replicas, and their prompt tokens. `unix` returns Unix seconds."""

    unix: Callable[[], float]
    arrivals: int = 0
    arrival_tokens: int = 0
    last_arrival: float = 0.0

    def wanted(self) -> None:
        """A client requests the model, with any outcome: the model is not idle."""
        self.last_arrival = self.unix()

    def arrived(self, tokens: int) -> None:
        """Count a request of `tokens` prompt tokens."""
        self.arrivals += 1
        self.arrival_tokens += tokens
        self.wanted()


def traffic_report(
    deployment: Deployment,
    counters: TrafficCounters,
    replicas: Iterable[Replica],
    queue: HoldQueue[Any],
    canary: CanaryStats | None,
    *,
    in_flight: int,
    now: float,
) -> ModelTraffic:
    """The traffic of one deployment, for the operator."""
    return ModelTraffic(
        namespace=deployment.namespace,
        name=deployment.name,
        arrivals=counters.arrivals,
        arrival_prompt_tokens=counters.arrival_tokens,
        in_flight=in_flight,
        held=len(queue),
        held_prompt_tokens=queue.tokens,
        oldest_hold=queue.oldest(now),
        last_arrival=counters.last_arrival,
        pods={one.endpoint.name: one.load.in_flight.tokens for one in replicas if one.load.in_flight.tokens},
        canary=canary.traffic() if canary else None,
    )
