"""How well the engine used what it had since it started: four factors and their product."""

from __future__ import annotations

import math

from octavo_protocol.load import LoadReport


def factors(report: LoadReport) -> dict[str, float]:
    """Shares from 0 to 1; 1 for what nothing has been asked of yet.

    useful  tokens computed for the first time, of all computed (a preempted sequence is computed again)
    rows    rows that sequences held, of all rows, over all steps
    prefix  prompt tokens found in the prefix cache, of all prompt tokens
    slots   the pool without its unused part: slots of held blocks that no token had filled, over all steps
    """
    steps = report.steps
    computed = steps.prefill + steps.rows
    return {
        "useful": 1 - _share(report.recomputed, computed, 0.0),
        "rows": _share(steps.held_rows, steps.count * report.max_running, 1.0),
        "prefix": _share(report.prefix_hit_tokens, report.prompt_tokens, 1.0),
        "slots": 1 - _share(steps.unused_slots, steps.count * report.blocks_total * report.block_size, 0.0),
    }


def efficiency(report: LoadReport) -> float:
    """The product of the factors."""
    return math.prod(factors(report).values())


def waste(report: LoadReport) -> float:
    """Share of the pool that is held and not filled now."""
    return _share(report.unused_slots, report.blocks_total * report.block_size, 0.0)


def _share(part: float, whole: float, otherwise: float) -> float:
    return part / whole if whole else otherwise
