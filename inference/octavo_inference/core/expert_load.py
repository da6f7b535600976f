"""How evenly tokens are spread over the experts of a model: a few numbers for operators, whatever its size is."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from octavo_protocol.load import ExpertLoad

PERIOD = 10.0
"""Seconds between two reads of the counters: on GPUs a read waits for the device."""
LEAST = 100
"""Tokens of an expert in a period, on average. With fewer, the largest load is above the mean by chance alone."""


def load_of(counts: NDArray[np.int64]) -> ExpertLoad:
    """The load with these tokens [layers, experts]. Layers without experts have none; some layer has."""
    used = counts[counts.any(axis=1)]
    ratios = used.max(axis=1) / used.mean(axis=1)
    return ExpertLoad(median=float(np.median(ratios)), worst=float(ratios.max()), unused=float((used == 0).mean()))


class ExpertMeter:
    """Reads a backend's counters now and then.

    A period ends after at least `PERIOD` seconds, when experts have computed `LEAST` tokens on average.
    """

    def __init__(self, read: Callable[[], NDArray[np.int64] | None]) -> None:
        self._read = read
        self._before: NDArray[np.int64] | None = None
        self._next_read = -math.inf
        self._load: ExpertLoad | None = None

    def load(self, now: float) -> ExpertLoad | None:
        """The load of the last period; None before its end, and for a backend that counts no experts' tokens."""
        if now >= self._next_read:
            self._next_read = now + PERIOD
            self._update(self._read())
        return self._load

    def _update(self, counts: NDArray[np.int64] | None) -> None:
        if counts is None:
            self._next_read = math.inf
        elif self._before is None:
            self._before = counts
        else:
            fresh = counts - self._before
            layers = np.count_nonzero(fresh.any(axis=1))
            if layers and fresh.sum() >= LEAST * layers * fresh.shape[1]:
                self._before, self._load = counts, load_of(fresh)
