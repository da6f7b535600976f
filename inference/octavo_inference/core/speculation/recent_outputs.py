"""The last answers of each tenant, for prompt lookup across requests."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]

_BETWEEN = -1
"""Divides two answers."""


class RecentOutputs:
    """The last `tokens` tokens of answers of each of the last `tenants` tenants. No tenant sees those of another."""

    def __init__(self, tokens: int, tenants: int = 64) -> None:
        self._most = tokens
        self._tenants = tenants
        self._texts: OrderedDict[str, Int32] = OrderedDict()

    def add(self, tenant: str, answer: Int32) -> None:
        """Add an answer."""
        before = self._texts.pop(tenant, np.empty(0, np.int32))
        joined = np.concatenate([before, answer, np.array([_BETWEEN], np.int32)])
        self._texts[tenant] = joined[-self._most :]
        if len(self._texts) > self._tenants:
            self._texts.popitem(last=False)

    def of(self, tenant: str) -> Int32:
        """The answers of a tenant, the last one at the end, each followed by -1."""
        return self._texts.get(tenant, np.empty(0, np.int32))
