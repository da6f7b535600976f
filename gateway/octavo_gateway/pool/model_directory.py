"""Finds the LLMDeployment of a model name: a served name, an alias, NAMESPACE/NAME, or the name of an adapter."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo_gateway.discovery.endpoints import Key, ModelTable

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class ModelDirectory:
    """All model names. A model's own name precedes that of an adapter; of adapters, the first by namespace and name."""

    table: ModelTable = field(default_factory=ModelTable)
    _adapters: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    _owners: dict[str, set[Key]] = field(default_factory=dict)
    # Adapter names with several owners, and what was logged.
    _conflicts: dict[str, str] = field(default_factory=dict)

    def adopt(self, table: ModelTable) -> None:
        """Use a new table; adapters of deployments that are gone are forgotten."""
        self.table = table
        for key in self._adapters.keys() - table.deployments.keys():
            self.claim(key, ())
        self._check(self._owners)

    def claim(self, key: Key, adapters: tuple[str, ...]) -> None:
        """These are the names of a deployment's adapters now."""
        before = self._adapters.pop(key, ())
        if adapters:
            self._adapters[key] = adapters
        for name in before:
            self._owners[name].discard(key)
            if not self._owners[name]:
                del self._owners[name]
        for name in adapters:
            self._owners.setdefault(name, set()).add(key)
        self._check({*before, *adapters})

    def find(self, name: str) -> tuple[Key, str] | None:
        """The key of the deployment with this name, and the adapter's name, "" for the base model; None if unknown."""
        deployment = self.table.find(name)
        if deployment is not None:
            return deployment.key, ""
        owners = self._owners.get(name)
        return (min(owners), name) if owners else None

    def adapters(self, key: Key) -> tuple[str, ...]:
        """The adapters of a deployment that requests reach by name, in order of name."""
        return tuple(sorted(name for name in self._adapters.get(key, ()) if self.find(name) == (key, name)))

    def _check(self, names: Iterable[str]) -> None:
        """Log each new conflict of an adapter's name once."""
        for name in names:
            owners = sorted("/".join(key) for key in self._owners.get(name, ()))
            model = self.table.find(name) if owners else None
            what = ""
            if model is not None:
                what = f"adapter {name!r} of {' and '.join(owners)}: it is a name of the model {'/'.join(model.key)}"
            elif len(owners) > 1:
                what = f"adapter {name!r} of {' and '.join(owners)}: the first one gets the requests"
            if not what:
                self._conflicts.pop(name, None)
            elif self._conflicts.get(name) != what:
                self._conflicts[name] = what
                log.warning("a model name is claimed twice; %s", what)
