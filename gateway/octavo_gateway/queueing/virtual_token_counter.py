"""What each tenant has had of a model, so that one tenant's thousand requests do not stand before another's one. Pure.

A virtual token counter (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): a prompt token counts 1,
a generated token 2; who has had least goes next. The expected output is charged when a request is sent and put right
when it ends, so that a tenant does not get many requests through before the first is paid. Nobody saves up by staying
away: who comes back starts where the one stands who has had least of those who wait, or had been chosen last.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest

PROMPT_TOKEN = 1
OUTPUT_TOKEN = 2
_MANY = 4096


def cost(prompt: float, output: float) -> float:
    """What a request's tokens count."""
    return prompt * PROMPT_TOKEN + output * OUTPUT_TOKEN


class VirtualTokenCounter:
    """The counters. `floor` is that of the tenant chosen last, when it was chosen."""

    def __init__(self) -> None:
        self.floor = 0.0
        self._served: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._served)

    def served(self, tenant: str) -> float:
        """What a tenant has had."""
        return self._served.get(tenant, self.floor)

    def arrive(self, tenant: str, waiting: Iterable[str]) -> None:
        """A tenant of whom nothing waited begins to wait; `waiting` are the others who do."""
        least = min((self.served(other) for other in waiting), default=self.floor)
        if len(self._served) >= _MANY:
            # Those who had least lose least when they start at the floor again.
            self._served = dict(nlargest(_MANY // 2, self._served.items(), key=lambda item: item[1]))
        self._served[tenant] = max(self.served(tenant), least)

    def choose(self, tenant: str, charge: float) -> None:
        """One of a tenant's requests is sent."""
        before = self.served(tenant)
        self.floor = max(self.floor, before)
        self._served[tenant] = before + charge

    def settle(self, tenant: str, more: float) -> None:
        """A request is over; it counts `more` than was charged, or less."""
        self._served[tenant] = self.served(tenant) + more
