"""Which replica a request is sent to: those that accept requests, those with headroom, and the router's choice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

from octavo_gateway.discovery.endpoints import Deployment
from octavo_gateway.pool.replica import Replica
from octavo_gateway.queueing.hold_queue import RequestAttributes
from octavo_gateway.routing import headroom
from octavo_gateway.routing.canary import split
from octavo_gateway.routing.candidate import Choice
from octavo_gateway.routing.output_length import OutputLengthEstimator
from octavo_gateway.routing.prompt_features import Prompt
from octavo_gateway.routing.router import Router

# Taken to send to the same replicas while it is not known how many gateways there are.
GATEWAYS = 2

_Cached = tuple[Replica, int]
"""A replica, and the prompt tokens of a request that it has cached."""


@dataclass(slots=True, eq=False)
class ReplicaSelector:
    """For one model. `gateways` send to its replicas, as far as is known."""

    router: Router
    lengths: OutputLengthEstimator
    gateways: int = GATEWAYS

    def accepting(self, deployment: Deployment, replicas: Iterable[Replica], now: float) -> Iterator[Replica]:
        """Those that may be sent requests; those of a canary without a share may not."""
        canary = deployment.canary_percent > 0
        return (one for one in replicas if one.accepts(now) and (canary or not one.endpoint.canary))

    def select(
        self,
        deployment: Deployment,
        prompt: Prompt,
        attributes: RequestAttributes,
        replicas: Iterable[Replica],
        now: float,
    ) -> Choice | None:
        """One of the replicas that accept requests, full or not; None when none does."""
        accepting = self._cached(prompt, self.accepting(deployment, replicas, now))
        return self._choose(deployment, prompt, attributes, accepting, now)

    def select_with_headroom(
        self,
        deployment: Deployment,
        prompt: Prompt,
        attributes: RequestAttributes,
        replicas: Iterable[Replica],
        now: float,
        largest: float = 0.0,
    ) -> tuple[Choice | None, float]:
        """One of those that also have room for the request, and the most tokens that any takes.

        `largest`: the most that replicas take which are not among these.
        """
        accepting = self._cached(prompt, self.accepting(deployment, replicas, now))
        usual = self.lengths.usual
        headrooms = [replica.headroom(now, usual, self.gateways) for replica, _ in accepting]
        largest = max(largest, headroom.largest(headrooms))
        expected = self.lengths.expected(attributes.most_output)
        answers = headroom.AnswerLengths(expected, usual, self.lengths.variation.value)
        fits = headroom.fits(headrooms, prompt.tokens, answers, [cached for _, cached in accepting], largest)
        choice = self._choose(deployment, prompt, attributes, list(compress(accepting, fits)), now)
        return choice, largest

    def _cached(self, prompt: Prompt, replicas: Iterable[Replica]) -> list[_Cached]:
        found = list(replicas)
        return list(zip(found, self.router.cached(prompt, [one.url for one in found]), strict=True))

    def _choose(
        self,
        deployment: Deployment,
        prompt: Prompt,
        attributes: RequestAttributes,
        replicas: Sequence[_Cached],
        now: float,
    ) -> Choice | None:
        if share := deployment.canary_percent:
            stable = [pair for pair in replicas if not pair[0].endpoint.canary]
            canary = [pair for pair in replicas if pair[0].endpoint.canary]
            replicas = split(stable, canary, share, self.router.random)
        candidates = [replica.candidate(now, cached) for replica, cached in replicas]
        return self.router.choose(candidates, prompt, self.lengths.expected(attributes.most_output), deployment.policy)
