"""Registry of the pools of all LLMDeployments, kept in step with the model table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from octavo_gateway.discovery.endpoints import Deployment, Key, ModelTable
from octavo_gateway.pool import refusals
from octavo_gateway.pool.model_directory import ModelDirectory
from octavo_gateway.pool.model_pool import ModelPool
from octavo_gateway.pool.replica import Replica
from octavo_gateway.pool.replica_selector import GATEWAYS
from octavo_gateway.pool.reservation import Reservation
from octavo_gateway.queueing.hold_queue import Bounds, HoldQueue
from octavo_gateway.routing.prefix_index import PrefixIndex


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that requests name: the own one of a pool, or an adapter. `adapter`: its name, "" for the own one."""

    pool: ModelPool
    adapter: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which a key may be allowed to use it; an adapter has only its own."""
        return (self.adapter,) if self.adapter else self.pool.deployment.names


class ModelRegistry:
    """The pools of all LLMDeployments. `index`: the prefix caches of all their replicas."""

    def __init__(
        self,
        bounds: Bounds,
        clock: Callable[[], float],
        random: Callable[[], float],
        unix: Callable[[], float] | None = None,
    ) -> None:
        self._bounds = bounds
        self._clock = clock
        self._unix = unix
        self._random = random
        self.directory = ModelDirectory()
        self.index = PrefixIndex()
        self._gateways = GATEWAYS
        self._pools: dict[Key, ModelPool] = {}

    def update(self, table: ModelTable) -> None:
        """Adopt a new table. Requests held for a deleted deployment get an error."""
        self.directory.adopt(table)
        for key in self._pools.keys() - table.deployments.keys():
            gone = self._pools.pop(key)
            for url in gone.replicas:
                self.index.forget(url)
            gone.fail_held(refusals.removed(gone.deployment))
        for key, deployment in table.deployments.items():
            if key not in self._pools:
                self._pools[key] = self._pool(deployment)
            self._pools[key].update(deployment)

    def shared_by(self, gateways: int) -> None:
        """Set the number of gateways, this one included."""
        self._gateways = gateways
        for pool in self._pools.values():
            pool.selector.gateways = gateways

    def find(self, name: str) -> NamedModel | None:
        """The model of a name."""
        key, adapter = self.directory.find(name) or (None, "")
        pool = self._pools.get(key) if key else None
        return NamedModel(pool, adapter) if pool else None

    def models(self) -> Iterator[NamedModel]:
        """All models in the order of their deployments' names, each followed by its adapters."""
        for key in self.directory.table.deployments:
            if (pool := self._pools.get(key)) is not None:
                yield NamedModel(pool)
                yield from (NamedModel(pool, adapter) for adapter in self.directory.adapters(key))

    def pools(self) -> Iterable[ModelPool]:
        """The pools of all deployments."""
        return tuple(self._pools.values())

    def replicas(self) -> Iterator[tuple[ModelPool, Replica]]:
        """Every replica of every deployment."""
        for pool in self.pools():
            for replica in tuple(pool.replicas.values()):
                yield pool, replica

    def _pool(self, deployment: Deployment) -> ModelPool:
        queue: HoldQueue[Reservation] = HoldQueue(self._bounds)
        named = partial(self.directory.claim, deployment.key)
        return ModelPool(deployment, queue, self.index, self._clock, self._random, self._unix, self._gateways, named)
