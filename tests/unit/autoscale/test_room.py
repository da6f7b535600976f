"""Room for chance: held to queues that are simulated request by request."""

from __future__ import annotations

from heapq import heapify, heapreplace
from math import ceil
from random import Random

import pytest

from octavo_operator.autoscale.demand import MISSES, _spare_rows


def late(rows: int, offered: float, patience: float, batch: int, seed: int = 0) -> float:
    """Share of requests that wait longer than `patience` answers for one of `rows`; they come in batches."""
    random, now, waits = Random(seed), 0.0, 0
    free = [0.0] * rows
    heapify(free)
    arrivals = 30_000
    for number in range(arrivals):
        if number % batch == 0:
            now += random.expovariate(offered / batch)
        start = max(now, free[0])
        heapreplace(free, start + random.expovariate(1.0))
        waits += start - now > patience
    return waits / arrivals


@pytest.mark.parametrize("offered", [8.0, 60.0, 300.0])
@pytest.mark.parametrize("patience", [0.05, 0.3])
def test_with_the_room_few_wait_too_long_and_without_it_many(offered, patience):
    spare = _spare_rows(offered, 1.0, patience)
    assert late(ceil(offered + spare), offered, patience, 1) < 2 * MISSES
    assert late(round(offered), offered, patience, 1) > 2 * MISSES


def test_bursts_get_more_room_and_patience_needs_less():
    plain = _spare_rows(60.0, 1.0, 0.1)
    # Batches of 4 have the dispersion 4.
    assert late(round(60 + plain), 60.0, 0.1, 4) > 2 * MISSES
    assert late(ceil(60 + _spare_rows(60.0, 4.0, 0.1)), 60.0, 0.1, 4) < 2 * MISSES
    assert _spare_rows(60.0, 1.0, 0.5) < plain < _spare_rows(60.0, 1.0, 0.0)


@pytest.mark.parametrize("offered", [0.0, 1e-9, 1e6])
def test_the_room_is_finite_and_grows_slower_than_the_load(offered):
    for spread in (1.0, 50.0):
        spare = _spare_rows(offered, spread, 0.1)
        assert 0 <= spare < float("inf")
        assert _spare_rows(4 * offered, spread, 0.1) <= 4 * spare
