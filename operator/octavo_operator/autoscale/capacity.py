"""What one replica can do, in closed form from the step model and the size of requests. Pure.

A replica computes n rows at a time; each needs O steps for its answer and shares them with the uncached prompt tokens
that come in its place, u/O per row and step. Little's law turns rows and step time into requests per second.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

from octavo_operator.autoscale.fit import StepModel

# Mean time per token as a share of its target: the slowest tenth of the tokens takes about a sixth longer.
TPOT_SHARE = 0.85
# Room for requests that are larger than the mean: standard deviations of what n rows hold together.
_SPREAD = 1.65


@dataclass(frozen=True, slots=True)
class Sizes:
    """Means of a request: prompt and answer tokens, share of the prompt found in the cache, KV tokens a row holds."""

    prompt: float
    answer: float
    hit: float
    resident: float

    @property
    def uncached(self) -> float:
        """Prompt tokens that have to be computed."""
        return self.prompt * (1.0 - self.hit)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one replica: KV tokens it may hold, rows, tokens per step; target seconds per token, 0 for none."""

    tokens: float
    rows: int
    budget: int
    tpot: float = 0.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """`rate` requests and `prefill` uncached prompt tokens per second, at `rows` rows and `step` seconds per step.

    `service` is the mean time of an answer in seconds; `feasible` is false when one row alone misses the target.
    """

    rate: float
    prefill: float
    rows: float
    step: float
    service: float
    feasible: bool


def capacity(model: StepModel, sizes: Sizes, limits: Limits) -> Capacity | None:
    """What a replica does within its limits; None while too little is known to say."""
    answer = max(1.0, sizes.answer)
    share = sizes.uncached / answer
    attended = sizes.prompt + answer / 2
    per_row = model.prefill * share + model.row + model.context * attended
    if model.base + per_row <= 0 or limits.rows <= 0:
        return None
    timed = inf
    if limits.tpot > 0 and per_row > 0:
        timed = (TPOT_SHARE * limits.tpot - model.base) / per_row
    elif limits.tpot > 0:
        timed = inf if model.base <= TPOT_SHARE * limits.tpot else 0.0
    budget = limits.budget / (1.0 + share) if limits.budget > 0 else inf
    most = min(timed, _holds(limits.tokens, sizes.resident), budget, float(limits.rows))
    rows = max(1.0, most)
    step = model.base + per_row * rows
    rate = rows / (answer * step)
    spare = 0.0
    if limits.tpot > 0 and model.prefill > 0:
        decoding = model.base + (model.row + model.context * attended) * rows
        spare = (1.0 - decoding / (TPOT_SHARE * limits.tpot)) / model.prefill
    return Capacity(rate, max(spare, rate * sizes.uncached), rows, step, answer * step, timed >= 1.0)


def _holds(tokens: float, resident: float) -> float:
    """Rows that fit into a pool, with room for chance: n*m + z*m*sqrt(n) tokens for a spread as large as the mean."""
    if tokens <= 0 or resident <= 0:
        return inf
    root = (sqrt(_SPREAD * _SPREAD + 4 * tokens / resident) - _SPREAD) / 2
    return root * root
