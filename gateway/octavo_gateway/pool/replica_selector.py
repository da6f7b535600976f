"""Selects the replica for a request: filters by acceptance and headroom, then calls the router."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

from octavo_gateway.discovery.endpoints import Deployment
from octavo_gateway.pool.pool_adapters import PoolAdapters
from octavo_gateway.pool.replica import Replica
from octavo_gateway.queueing.hold_queue import RequestAttributes
from octavo_gateway.routing import headroom
from octavo_gateway.routing.canary import split
from octavo_gateway.routing.candidate import Choice
from octavo_gateway.routing.output_length import OutputLengthEstimator
from octavo_gateway.routing.prompt_features import Prompt
from octavo_gateway.routing.router import Router

# Assumed number of gateways that send to the same replicas while their number is unknown.
GATEWAYS = 2

_Cached = tuple[Replica, int]
"""A replica, and the prompt tokens of a request that it has cached."""


@dataclass(slots=True, eq=False)
class ReplicaSelector:
    """Selects the replicas of one model. `gateways`: known number of gateways that send to them."""

    router: Router
    lengths: OutputLengthEstimator
    adapters: PoolAdapters
    gateways: int = GATEWAYS

    def accepting(
        self, deployment: Deployment, replicas: Iterable[Replica], now: float, adapter: str = ""
    ) -> Iterator[Replica]:
        """The replicas that accept requests, without those of a canary that has no share of requests.

        `adapter`: only those that offer it.
        """
        canary = deployment.canary_percent > 0
        found = (one for one in replicas if one.accepts(now) and (canary or not one.endpoint.canary))
        if not adapter:
            return found
        listed = self.adapters.is_listed(adapter)
        return (one for one in found if one.offers(adapter, now, listed=listed))

    def select(
        self,
        deployment: Deployment,
        prompt: Prompt,
        attributes: RequestAttributes,
        replicas: Iterable[Replica],
        now: float,
    ) -> Choice | None:
        """Choose among the replicas that accept requests, full or not; None if none does."""
        accepting = self._cached(prompt, self.accepting(deployment, replicas, now, attributes.adapter))
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
        """Choose among the replicas that also have headroom; returns the choice and the most tokens that any accepts.

        `largest`: the most tokens that a replica outside of `replicas` accepts.
        """
        accepting = self._cached(prompt, self.accepting(deployment, replicas, now, attributes.adapter))
        usual = self.lengths.usual
        headrooms = [replica.headroom(now, usual, self.gateways) for replica, _ in accepting]
        largest = max(largest, headroom.largest(headrooms))
        expected = self.lengths.expected(attributes.most_output)
        answers = headroom.AnswerLengths(expected, usual, self.lengths.variation.value)
        fits = headroom.fits(headrooms, prompt.tokens, answers, [cached for _, cached in accepting], largest)
        choice = self._choose(deployment, prompt, attributes, list(compress(accepting, fits)), now)
        return choice, largest

    def select_any(
        self, deployment: Deployment, replicas: Iterable[Replica], now: float, adapter: str = ""
    ) -> Choice | None:
        """Any replica that accepts requests, for a request that needs no engine; None if none does."""
        accepting = [(one, 0) for one in self.accepting(deployment, replicas, now, adapter)]
        shared = self._split(deployment, accepting)
        return Choice(shared[int(self.router.random() * len(shared))][0].candidate(now), "any") if shared else None

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
        shared = self._split(deployment, replicas)
        adapter = attributes.adapter
        candidates = [replica.candidate(now, cached, adapter) for replica, cached in shared]
        output = self.lengths.expected(attributes.most_output)
        return self.router.choose(candidates, prompt, output, deployment.policy, adapter)

    def _split(self, deployment: Deployment, replicas: Sequence[_Cached]) -> Sequence[_Cached]:
        """The replicas of one track during a canary, by the canary's share; else all."""
        share = deployment.canary_percent
        if not share:
            return replicas
        stable = [pair for pair in replicas if not pair[0].endpoint.canary]
        canary = [pair for pair in replicas if pair[0].endpoint.canary]
        return split(stable, canary, share, self.router.random)
