"""How many tokens each tenant has been served, so that a tenant with a thousand requests does not block one with one.

A virtual token counter (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): a prompt token counts 1,
a generated token 2; of the tenants that wait, the one with the lowest counter is served next. An idle tenant gains no
credit: when it waits again, its counter is lifted to the lowest of those that wait, or to that of the tenant chosen
last. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest

PROMPT_TOKEN = 1
OUTPUT_TOKEN = 2

MOST_TENANTS = 4096


def cost(prompt: float, output: float) -> float:
    """What a request of so many prompt and generated tokens counts."""
    return prompt * PROMPT_TOKEN + output * OUTPUT_TOKEN


class VirtualTokenCounter:
    """The counters by tenant. `floor` is that of the tenant chosen last, before it was charged."""

    def __init__(self) -> None:
        self.floor = 0.0
        self._served: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._served)

    def served(self, tenant: str) -> float:
        """A tenant's counter; that of an unknown one is at the floor."""
        return self._served.get(tenant, self.floor)

    def arrive(self, tenant: str, waiting: Iterable[str]) -> None:
        """A tenant starts to wait; `waiting` are the others that do."""
        least = min(map(self.served, waiting), default=self.floor)
        if len(self._served) >= MOST_TENANTS:
            # Those with the lowest counters lose least when they start at the floor again.
            self._served = dict(nlargest(MOST_TENANTS // 2, self._served.items(), key=lambda item: item[1]))
        self._served[tenant] = max(self.served(tenant), least)

    def choose(self, tenant: str, charge: float) -> None:
        """One of a tenant's requests starts, which counts `charge` at first."""
        self.floor = max(self.floor, self.served(tenant))
        self.charge(tenant, charge)

    def charge(self, tenant: str, tokens: float) -> None:
        """Add what a request counts beyond its first charge; less than 0 to give back."""
        self._served[tenant] = self.served(tenant) + tokens
