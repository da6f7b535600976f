"""The values of a choice: the replicas that may be chosen, the request, the policy, and the choice itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from octavo_common.step_cost import StepCost

PREFIX_AWARE = "PrefixAware"
LEAST_LOAD = "LeastLoad"
ROUND_ROBIN = "RoundRobin"
SESSION = "Session"
STRATEGIES = (PREFIX_AWARE, LEAST_LOAD, ROUND_ROBIN, SESSION)

# Tokens in a step of a pod that has not said how many fit.
USUAL_BATCH = 2048


@dataclass(frozen=True, slots=True)
class Report:
    """What routing needs of a pod's load report: tokens and sequences.

    `uncached` prompt tokens are still to be computed, `batch` tokens fit a step, `running` of the rows do not wait.
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

    `in_flight`, `in_flight_tokens`: what this gateway has sent and not seen finish; `prefilling` is the part of the
    tokens not cached and not answered yet. `since`, `since_tokens`: what it has sent after the report was taken, less
    what finished; `since_uncached` the part of that not cached and not answered yet. `report` was taken `age` seconds
    ago; None when there is none or it is too old to be used. `matched` prompt tokens of the request to be routed are in
    its prefix cache, as far as is known.
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


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to be routed: its prompt tokens and the tokens it will likely generate.

    `anchor` names the start of its prompt: equal for prompts that begin alike, empty for a short one. `conversation`
    names its first turn as a whole, and `presumed` of its tokens are older than the last answer in it: some gateway has
    sent them somewhere. `session` is what sticks to one pod in Session mode, empty without. `turn` counts the
    deployment's requests, for RoundRobin.
    """

    tokens: int
    output: float = 128.0
    anchor: bytes = b""
    conversation: bytes = b""
    presumed: int = 0
    session: bytes = b""
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """How a deployment wants to be routed. A pod above `max_load` times the mean in-flight tokens is over the bound."""

    strategy: str = PREFIX_AWARE
    max_load: float = 1.25


@dataclass(frozen=True, slots=True)
class Choice:
    """The pod, and why: only, affinity, presumed, load, bound, tie, session or turn.

    `against`: another pod has more of the prompt cached.
    """

    candidate: Candidate
    reason: str
    against: bool = False
