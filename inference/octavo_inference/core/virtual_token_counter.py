"""What each tenant has had of the engine, so that one tenant's thousand requests do not stand before another's one.

A virtual token counter (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): a prompt token computed
counts 1, a generated token 2; who has had least goes next. Nobody saves up by staying away: who comes back starts where
the one stands who was chosen last.
"""

from __future__ import annotations

PROMPT_TOKEN = 1
GENERATED_TOKEN = 2

_MANY = 1024


class TenantCounter:
    """One tenant's counter. `open` counts its sequences that wait or run; `number` orders accounts by age."""

    __slots__ = ("name", "number", "open", "served")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.served = 0
        self.open = 0


class VirtualTokenCounter:
    """All accounts. `floor` is the counter of the tenant chosen last, when it was chosen."""

    def __init__(self) -> None:
        self.floor = 0
        self._accounts: dict[str, TenantCounter] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._accounts)

    def enter(self, tenant: str) -> TenantCounter:
        """The account of a sequence that arrives."""
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._accounts) >= _MANY:
                self._tidy()
            self._numbers += 1
            account = self._accounts[tenant] = TenantCounter(tenant, self._numbers)
        if account.open == 0:
            account.served = max(account.served, self.floor)
        account.open += 1
        return account

    def leave(self, account: TenantCounter) -> None:
        """One of its sequences has finished."""
        account.open -= 1

    def choose(self, account: TenantCounter, tokens: int) -> None:
        """One of its sequences starts, with `tokens` of prompt to compute."""
        self.floor = max(self.floor, account.served)
        account.served += tokens * PROMPT_TOKEN

    def _tidy(self) -> None:
        # An idle account at the floor or below says nothing that a new one would not.
        self._accounts = {name: a for name, a in self._accounts.items() if a.open or a.served > self.floor}
