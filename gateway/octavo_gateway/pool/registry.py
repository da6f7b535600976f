"""All LLMDeployments that the gateway serves at run time, kept in step with the table of what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from octavo_gateway.discovery.endpoints import Deployment, Key, ModelTable
from octavo_gateway.openai import ApiError
from octavo_gateway.pool.model_pool import GATEWAYS, ModelPool
from octavo_gateway.pool.replica import Replica
from octavo_gateway.pool.reservation import Reservation
from octavo_gateway.queueing.hold_queue import Bounds, HoldQueue
from octavo_gateway.routing.prefix_index import PrefixIndex


class ModelRegistry:
    """All LLMDeployments the gateway serves."""

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
        self._table = ModelTable()
        self.index = PrefixIndex()
        self._gateways = GATEWAYS
        self._backends: dict[Key, ModelPool] = {}

    def update(self, table: ModelTable) -> None:
        """Take over a new table. Requests held for a deployment that is gone get one clear answer."""
        self._table = table
        for key in self._backends.keys() - table.deployments.keys():
            gone = self._backends.pop(key)
            for url in gone.upstreams:
                self.index.forget(url)
            gone.fail_held(ApiError(503, f"The model {gone.deployment.models[0]!r} was removed.", code="model_removed"))
        for key, deployment in table.deployments.items():
            backend = self._backends.get(key)
            if backend is None:
                queue: HoldQueue[Reservation] = HoldQueue(self._bounds)
                backend = ModelPool(deployment, queue, self._clock, self._random, index=self.index, unix=self._unix)
                self._backends[key] = backend
                backend.gateways = self._gateways
            backend.serve_by(deployment)

    def shared_by(self, gateways: int) -> None:
        """How many gateways there are, this one included."""
        self._gateways = gateways
        for backend in self._backends.values():
            backend.gateways = gateways

    def find(self, model: str) -> ModelPool | None:
        """The deployment that serves a model name."""
        deployment = self._table.find(model)
        return self._backends.get(deployment.key) if deployment else None

    def deployments(self) -> Iterable[Deployment]:
        """All deployments, in the order of their names."""
        return self._table.deployments.values()

    def backends(self) -> Iterable[ModelPool]:
        """All deployments at run time."""
        return tuple(self._backends.values())

    def upstreams(self) -> Iterator[tuple[ModelPool, Replica]]:
        """Every pod of every deployment."""
        for backend in self.backends():
            for upstream in tuple(backend.upstreams.values()):
                yield backend, upstream
