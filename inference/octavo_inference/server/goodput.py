"""Engine efficiency since start: four factors and their product."""

from __future__ import annotations

import math

from octavo_protocol.load import LoadReport


def factors(report: LoadReport) -> dict[str, float]:
    """Factors from 0 to 1; 1 if there is no data yet.

    useful: tokens computed for the first time, divided by all computed tokens. Preempted sequences are recomputed.
    rows: rows held by sequences, divided by all rows, over all steps.
    prefix: prompt tokens found in the prefix cache, divided by all prompt tokens.
    slots: 1 minus slots of held blocks without a token, divided by all slots of the pool, over all steps.
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
    """Share of the pool that is currently held and not filled."""
    return _share(report.unused_slots, report.blocks_total * report.block_size, 0.0)


def _share(part: float, whole: float, otherwise: float) -> float:
    return part / whole if whole else otherwise
