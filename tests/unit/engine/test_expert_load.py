"""How evenly tokens are spread over experts: periods, and numbers of bounded size."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo_inference.core.expert_load import LEAST, PERIOD, ExpertMeter, load_of
from octavo_protocol.load import ExpertLoad


@dataclass
class Counters:
    """A backend's counters of two layers with four experts."""

    tokens: NDArray[np.int64] = field(default_factory=lambda: np.zeros((3, 4), np.int64))
    reads: int = 0

    def read(self) -> NDArray[np.int64]:
        self.reads += 1
        return self.tokens.copy()

    def add(self, *layers: list[int]) -> None:
        self.tokens[1:] += np.array(layers)


def test_the_busiest_expert_beside_the_mean() -> None:
    found = load_of(np.array([[0, 0, 0, 0], [10, 10, 10, 10], [40, 0, 0, 0], [20, 10, 10, 0]]))
    assert found.median == 2
    assert found.worst == 4
    assert found.unused == pytest.approx(4 / 12)


def test_a_period_is_long_enough_and_has_enough_tokens() -> None:
    counters = Counters()
    meter = ExpertMeter(counters.read)
    assert meter.load(0.0) is None
    counters.add([LEAST] * 4, [4 * LEAST, 0, 0, 0])
    assert meter.load(0.9 * PERIOD) is None  # too soon
    assert meter.load(PERIOD) == ExpertLoad(median=2.5, worst=4, unused=0.375)
    counters.add([0, 0, 0, LEAST], [LEAST] * 4)
    assert meter.load(2 * PERIOD) == ExpertLoad(median=2.5, worst=4, unused=0.375)  # too few tokens
    counters.add([0, 0, 0, 3 * LEAST], [0, 0, 0, 0])
    found = meter.load(3 * PERIOD)
    assert found == ExpertLoad(median=2.5, worst=4, unused=0.375)  # the same numbers, of other layers
    counters.add([2 * LEAST] * 4, [2 * LEAST] * 4)
    assert meter.load(4 * PERIOD) == ExpertLoad(median=1, worst=1, unused=0)


def test_counters_are_read_once_in_a_period() -> None:
    counters = Counters()
    meter = ExpertMeter(counters.read)
    for step in range(1000):
        meter.load(step * PERIOD / 100)
    assert counters.reads == 10


def test_a_model_without_experts_is_asked_once() -> None:
    asked = []
    meter = ExpertMeter(lambda: asked.append(1))
    assert [meter.load(second) for second in (0.0, PERIOD, 1e9)] == [None] * 3
    assert len(asked) == 1
