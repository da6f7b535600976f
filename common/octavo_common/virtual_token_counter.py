"""Virtual token counters: tokens served per tenant, so that many requests of one tenant do not block another.

A virtual token counter (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): a prompt token counts 1,
a generated token 2; the waiting tenant with the lowest counter is served next. An idle tenant gains no credit: when it
waits again, its counter is lifted to the lowest of the waiting tenants, or to that of the tenant chosen last. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest

PROMPT_TOKEN = 1
OUTPUT_TOKEN = 2

MOST_TENANTS = 4096


def cost(prompt: float, output: float) -> float:
    """The charge of a request with these prompt and generated tokens."""
    return prompt * PROMPT_TOKEN + output * OUTPUT_TOKEN


class VirtualTokenCounter:
    """The counters by tenant. `floor`: the counter of the tenant chosen last, before its charge."""

    def __init__(self) -> None:
        self.floor = 0.0
        self._served: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._served)

    def served(self, tenant: str) -> float:
        """A tenant's counter; an unknown tenant is at the floor."""
        return self._served.get(tenant, self.floor)

    def arrive(self, tenant: str, waiting: Iterable[str]) -> None:
        """Register a tenant that starts to wait; `waiting` are the other waiting tenants."""
        least = min(map(self.served, waiting), default=self.floor)
        if len(self._served) >= MOST_TENANTS:
            # Drop the lowest counters: a restart at the floor changes them least.
            self._served = dict(nlargest(MOST_TENANTS // 2, self._served.items(), key=lambda item: item[1]))
        self._served[tenant] = max(self.served(tenant), least)

    def choose(self, tenant: str, charge: float) -> None:
        """Choose a tenant's request, with `charge` as its first charge."""
        self.floor = max(self.floor, self.served(tenant))
        self.charge(tenant, charge)

    def charge(self, tenant: str, tokens: float) -> None:
        """Add `tokens` to a tenant's counter; negative for a refund."""
        self._served[tenant] = self.served(tenant) + tokens
