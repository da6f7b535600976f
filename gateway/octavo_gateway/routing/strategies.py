"""Chooses a pod by each strategy: least predicted cost with bounded load, session affinity, round robin. Pure.

Random numbers come in as an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

from octavo_gateway.routing.candidate import LEAST_LOAD, ROUND_ROBIN, SESSION, Candidate, Choice, Policy, RoutingRequest
from octavo_gateway.routing.cost import FREE_ROWS, FREE_SHARE, PodState, calm, idle_cost, pod_states, request_cost

# Costs that differ by less than this share of the load's part are a tie: reports are up to a second old.
TIE = 0.05
# Prompt tokens that a pod is presumed to have cached for an affinity that it is the home of. Less than a long cached
# prefix elsewhere, and few enough that load still decides. OpenAI caches prompts from this length on.
AFFINITY_TOKENS = 1024


def route(
    candidates: Sequence[Candidate], request: RoutingRequest, policy: Policy, random: Callable[[], float]
) -> Choice | None:
    """The pod for a request; None without a candidate.

    `random` returns numbers in [0, 1). Equal inputs give equal choices in any order of the candidates, except where a
    random number breaks a tie.
    """
    if len(candidates) < 2:
        return Choice(candidates[0], "only") if candidates else None
    if policy.strategy == ROUND_ROBIN:
        ordered = sorted(candidates, key=lambda candidate: candidate.key)
        return Choice(ordered[request.turn % len(ordered)], "turn")
    pods = pod_states(candidates)
    if policy.strategy == LEAST_LOAD:
        return _least_loaded(candidates, pods, request, random)
    within = _within(pods, request.tokens, policy.max_load)
    if policy.strategy == SESSION and request.session:
        allowed = [candidate for candidate, fits in zip(candidates, within, strict=True) if fits]
        return Choice(_rendezvous(request.session, allowed), "session")
    return _cheapest(candidates, [calm(pod, request.tokens) for pod in pods], request, within, random)


def _cheapest(
    candidates: Sequence[Candidate],
    pods: Sequence[PodState],
    request: RoutingRequest,
    within: Sequence[bool],
    random: Callable[[], float],
) -> Choice:
    """The pod with the least cost. A cached prefix counts only on pods within the load bound."""
    limit = request.tokens - 1
    matches = [min(one.matched, limit) if fits else 0 for one, fits in zip(candidates, within, strict=True)]
    most = max(matches)
    home = -1
    # All gateways agree on a pod by the client's name for the prompt, or by that of the prompt's start.
    name = request.affinity or (request.conversation if most else request.anchor)
    presumed = min(limit, max(request.presumed, AFFINITY_TOKENS)) if request.affinity else request.presumed
    if name and presumed > 2 * most:
        holders = [one for one, match in zip(candidates, matches, strict=True) if request.affinity or match == most]
        home = candidates.index(_rendezvous(name, holders))
        if within[home]:
            matches[home] = min(presumed, limit)
    costs = [request_cost(pod, request, matched) for pod, matched in zip(pods, matches, strict=True)]
    chosen, tied = _least(costs, pods, request)
    if len(tied) > 1:
        longest = max(matches[index] for index in tied)
        tied = [index for index in tied if matches[index] == longest]
        if request.adapter and pods[tied[0]].adapter.steps:
            # No pod has loaded it: all gateways agree on one, so that few pods load it.
            name = request.adapter
        if len(tied) == 1:
            (chosen,) = tied
        elif name:
            equals = [candidates[index] for index in tied]
            chosen = candidates.index(_rendezvous(name, equals))
        else:
            chosen = _better_of_two(costs, tied, random)
    against = candidates[chosen].matched < max(one.matched for one in candidates)
    if against and not all(fits or one.matched <= most for one, fits in zip(candidates, within, strict=True)):
        reason = "bound"
    elif matches[chosen] > min(matches):
        home_reason = "cache_key" if request.affinity else "presumed"
        reason = home_reason if chosen == home else "affinity"
    else:
        reason = "tie" if len(tied) > 1 else "load"
    return Choice(candidates[chosen], reason, against)


def _least_loaded(
    candidates: Sequence[Candidate], pods: Sequence[PodState], request: RoutingRequest, random: Callable[[], float]
) -> Choice:
    """The pod with the least cost, without regard to prefixes."""
    costs = [request_cost(pod, request, 0) for pod in pods]
    chosen, tied = _least(costs, pods, request)
    if len(tied) > 1:
        chosen = _better_of_two(costs, tied, random)
    return Choice(candidates[chosen], "tie" if len(tied) > 1 else "load")


def _least(costs: Sequence[float], pods: Sequence[PodState], request: RoutingRequest) -> tuple[int, list[int]]:
    """Index of the least cost, and the indices of all costs that tie with it.

    Of these only the pods with the shortest load of the request's adapter count.
    """
    best = min(costs)
    chosen = costs.index(best)
    limit = best + TIE * max(0.0, best - idle_cost(pods[chosen].step_cost, request))
    tied = [index for index, cost in enumerate(costs) if cost <= limit]
    least = min(pods[index].adapter.steps for index in tied)
    tied = [index for index in tied if pods[index].adapter.steps == least]
    return (chosen if len(tied) > 1 else tied[0]), tied


def _better_of_two(costs: Sequence[float], tied: list[int], random: Callable[[], float]) -> int:
    """Power of two choices: the better of two random pods, so that gateways that decide at once do not all agree."""
    tied = list(tied)
    first = tied.pop(int(random() * len(tied)))
    second = tied[int(random() * len(tied))]
    return first if costs[first] <= costs[second] else second


def _within(pods: Sequence[PodState], tokens: int, max_load: float) -> list[bool]:
    """Whether each pod is within the load bound; the least loaded one always is.

    As in consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016) the mean counts the new request
    and the pod's own load does not. So few requests among many pods can still use their cached prefixes.
    """
    bound = max_load * (sum(pod.used for pod in pods) + tokens) / len(pods)
    return [pod.rows < FREE_ROWS or pod.used <= max(bound, FREE_SHARE * pod.pool) for pod in pods]


def _rendezvous(name: bytes, candidates: Sequence[Candidate]) -> Candidate:
    """The pod that every gateway chooses for `name` (highest random weight, Thaler and Ravishankar 1998)."""
    return max(candidates, key=lambda c: (blake2b(name + c.key.encode(), digest_size=8).digest(), c.key))
