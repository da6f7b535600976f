"""What counts as a request that got what was promised."""

from __future__ import annotations

from math import inf

import pytest

from octavo_simulator.job import Outcome, SimulatedRequest
from octavo_simulator.metrics import attained
from octavo_simulator.scenario import Promise
from octavo_simulator.trace import TraceRequest

# 2 s to the first of 11 tokens, and 0.1 s to each of the 10 that follow.
PROMISE = Promise(2.0, 0.1)


@pytest.mark.parametrize(
    ("first", "ended", "outcome", "good"),
    [
        (102.0, 103.0, "finished", True),
        (102.01, 103.0, "finished", False),
        (102.0, 103.01, "finished", False),
        (102.0, 103.0, "broken", False),
        (inf, 101.0, "rejected", False),
    ],
)
def test_a_good_request_finished_and_kept_both_promises(
    first: float, ended: float, outcome: Outcome, good: bool
) -> None:
    job = SimulatedRequest(0, TraceRequest(100.0, 50, 11), 100.0, first=first, ended=ended, outcome=outcome)
    assert attained([job], PROMISE).tolist() == [good]


def test_an_answer_of_one_token_has_no_time_between_tokens() -> None:
    job = SimulatedRequest(0, TraceRequest(100.0, 50, 1), 100.0, first=101.0, ended=101.0, outcome="finished")
    assert attained([job], PROMISE).tolist() == [True]
