"""The adapters of one model: the names that the operator announces, and the states that replicas report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from octavo_gateway.pool.replica import Replica
from octavo_protocol.adapters import AdapterReport, AdapterState

Listed = Mapping[str, AdapterReport] | None
"""The adapters that one replica reported, by name; None before its first report."""


@dataclass(slots=True, eq=False)
class PoolAdapters:
    """Adapters by name. `announced`: those of the Service's annotation. `states`: number of replicas in each state."""

    announced: tuple[str, ...] = ()
    states: dict[str, Counter[AdapterState]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All names: a name is gone when neither the annotation nor a replica lists it."""
        return tuple(dict.fromkeys((*self.announced, *self.states)))

    def reported(self, before: Listed, now: Listed) -> None:
        """A replica lists `now` instead of `before`; None for a replica that is new or gone."""
        for name, one in (before or {}).items():
            counts = self.states[name]
            counts[one.state] -= 1
            if not counts[one.state]:
                del counts[one.state]
            if not counts:
                del self.states[name]
        for name, one in (now or {}).items():
            self.states.setdefault(name, Counter())[one.state] += 1

    def is_listed(self, name: str) -> bool:
        """True if a replica lists it as usable, now or soon."""
        return any(state != "failed" for state in self.states.get(name, ()))

    def has_failed(self, name: str) -> bool:
        """True if replicas list it, all as failed."""
        return name in self.states and not self.is_listed(name)


def failure_of(name: str, replicas: Iterable[Replica]) -> str:
    """Why an adapter is unusable, as the first replica that lists it as failed reports it."""
    found = ((one.adapters or {}).get(name) for one in replicas)
    return next((one.failure for one in found if one is not None and one.failure), "no reason was reported")
