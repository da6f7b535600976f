"""The last answers of each tenant, for prompt lookup across requests."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]

_BETWEEN = -1
"""Divides two answers."""


class RecentOutputs:
    """The last `tokens` tokens of answers with each of the last `salts` salts.

    As in the prefix cache, a salt (`Request.salt`) stands for a tenant and its `cache_salt`: an answer is not guessed
    from one with another salt.
    """

    def __init__(self, tokens: int, salts: int = 64) -> None:
        self._most = tokens
        self._salts = salts
        self._texts: OrderedDict[str, Int32] = OrderedDict()

    def add(self, salt: str, answer: Int32) -> None:
        """Add an answer."""
        before = self._texts.pop(salt, np.empty(0, np.int32))
        joined = np.concatenate([before, answer, np.array([_BETWEEN], np.int32)])
        self._texts[salt] = joined[-self._most :]
        if len(self._texts) > self._salts:
            self._texts.popitem(last=False)

    def of(self, salt: str) -> Int32:
        """The answers with a salt, the last one at the end, each followed by -1."""
        return self._texts.get(salt, np.empty(0, np.int32))

    def clear(self) -> None:
        """Forget all."""
        self._texts.clear()
