"""The capacity of one replica, in closed form from the step model and the request sizes. Pure.

A replica runs n rows at a time. Each row needs O steps for its output, and the steps also prefill the u uncached prompt
tokens of its successor: u/O per row and step. Little's law turns rows and step time into requests per second.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

from octavo_common.step_cost import StepCost

# While a row decodes, the number and the sizes of the prompts in its steps are random; their mean number is that of the
# rows. The TPOT target must hold this many standard deviations above the mean, so for more than 90 % of the outputs.
TAIL = 3.0


@dataclass(frozen=True, slots=True)
class RequestSizes:
    """Mean request: prompt and output tokens, prefix cache hit share of the prompt, KV tokens that a row holds."""

    prompt: float
    answer: float
    hit: float
    resident: float

    @property
    def uncached(self) -> float:
        """Prompt tokens to prefill."""
        return self.prompt * (1.0 - self.hit)


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """Limits of one replica: KV tokens, rows, tokens per step, and target seconds per token (0 for none)."""

    tokens: float
    rows: int
    budget: int
    tpot: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    """`rate` requests and `prefill` uncached prompt tokens per second, at `rows` rows and `step` seconds per step.

    `service`: mean seconds of a request's decode; `feasible`: false if a single row already misses the TPOT target.
    """

    rate: float
    prefill: float
    rows: float
    step: float
    service: float
    feasible: bool


def capacity(model: StepCost, sizes: RequestSizes, limits: ReplicaLimits) -> ReplicaCapacity | None:
    """The capacity of a replica within its limits; None while too little is known."""
    answer = max(1.0, sizes.answer)
    share = sizes.uncached / answer
    attended = sizes.prompt + answer / 2
    per_row = model.prefill * share + model.row + model.context * attended
    if model.base + per_row <= 0 or limits.rows <= 0:
        return None
    timed = inf
    if limits.tpot > 0:
        timed = _timed(limits.tpot - model.base, per_row, TAIL * model.prefill * share)
    budget = limits.budget / (1.0 + share) if limits.budget > 0 else inf
    held = limits.tokens / sizes.resident if limits.tokens > 0 and sizes.resident > 0 else inf
    most = min(timed, held, budget, float(limits.rows))
    rows = max(1.0, most)
    step = model.base + per_row * rows
    rate = rows / (answer * step)
    spare = 0.0
    if limits.tpot > 0 and model.prefill > 0:
        decoding = model.base + (model.row + model.context * attended) * rows
        spare = (1.0 - decoding / limits.tpot) / model.prefill
    return ReplicaCapacity(rate, max(spare, rate * sizes.uncached), rows, step, answer * step, timed >= 1.0)


def _timed(left: float, per_row: float, spread: float) -> float:
    """The largest n with n*per_row + sqrt(n)*spread <= left, all in seconds."""
    if left <= 0:
        return 0.0
    if per_row <= 0:
        return inf
    root = (sqrt(spread * spread + 4 * per_row * left) - spread) / (2 * per_row)
    return root * root
