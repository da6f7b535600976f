"""Values of a routing decision: the candidate pods, the request, the policy, and the choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from octavo_common.step_cost import StepCost
from octavo_gateway.routing.adapter_cost import IN_PLACE, AdapterPlace

PREFIX_AWARE = "PrefixAware"
LEAST_LOAD = "LeastLoad"
ROUND_ROBIN = "RoundRobin"
SESSION = "Session"
STRATEGIES = (PREFIX_AWARE, LEAST_LOAD, ROUND_ROBIN, SESSION)

# Tokens per step of a pod that has not reported its limit.
USUAL_BATCH = 2048


@dataclass(frozen=True, slots=True)
class Report:
    """The part of a pod's load report that routing needs, in tokens and sequences.

    `uncached`: prompt tokens still to be computed. `batch`: tokens that fit in a step. `running`: rows that do not
    wait.
    """

    pool_tokens: int
    used_tokens: int
    rows: int
    max_rows: int
    uncached: int = 0
    batch: int = USUAL_BATCH
    step_cost: StepCost | None = None
    running: int = 0


class Candidate(NamedTuple):
    """One pod that accepts requests.

    `in_flight`, `in_flight_tokens`: unfinished requests of this gateway, and their tokens. `prefilling`: the part of
    these tokens that is not cached and whose answer has not begun. `since`, `since_tokens`: requests and tokens sent
    after the report was taken, less the finished ones. `since_uncached`: the part of these tokens that is not cached
    and whose answer has not begun. `report`: taken `age` seconds ago; None if missing or too old. `matched`: prompt
    tokens of the request to be routed that are in the pod's prefix cache, as far as is known. `adapter`: that of the
    request, as the pod has it.
    """

    key: str
    in_flight: int
    in_flight_tokens: int
    since: int
    since_tokens: int
    report: Report | None
    since_uncached: int = 0
    prefilling: int = 0
    matched: int = 0
    age: float = 0.0
    adapter: AdapterPlace = IN_PLACE


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """A request to be routed: its prompt tokens and the tokens it will likely generate.

    `anchor` names the start of its prompt: equal for prompts with the same start, empty for a short prompt.
    `conversation` names its whole first turn. `presumed` of its tokens precede the last answer in it, so some gateway
    has already sent them to a pod. `affinity`: equal for requests that the client wants on one pod, else empty.
    `session`: key of the session that stays on one pod in Session mode, else empty. `turn`: number of the deployment's
    request, for RoundRobin. `adapter`: name of its adapter, empty for the base model.
    """

    tokens: int
    output: float = 128.0
    anchor: bytes = b""
    conversation: bytes = b""
    presumed: int = 0
    session: bytes = b""
    turn: int = 0
    affinity: bytes = b""
    adapter: bytes = b""


@dataclass(frozen=True, slots=True)
class Policy:
    """A deployment's routing policy. A pod above `max_load` times the mean in-flight tokens is over the bound."""

    strategy: str = PREFIX_AWARE
    max_load: float = 1.25


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen pod and the reason, a label of `octavo_gateway_routed_requests_total`.

    `against`: another pod has more of the prompt cached.
    """

    candidate: Candidate
    reason: str
    against: bool = False
