"""Finds the replica that stores a response of the Responses API.

Three ways, in this order: the gateway's memory of the responses that it forwarded; the tag in the response's id, which
names the pod, so that every gateway and worker finds it; and asking each replica, in groups and up to a bound, where a
replica's name is not its host name, as without Kubernetes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import aiohttp

from octavo_gateway.api.errors import ApiError
from octavo_gateway.pool.model_pool import ModelPool
from octavo_gateway.pool.replica import Replica
from octavo_gateway.pool.stored_responses import StoredAt, StoredResponses, is_response_id
from octavo_protocol.names import HEADER_REQUEST_ID, HEADER_TENANT
from octavo_protocol.response_id import replica_tag, tag_of
from octavo_protocol.routes import route

# Replicas asked at a time and in all for one response, and searches at a time.
AT_A_TIME = 32
MOST_ASKED = 256
SEARCHES = 8
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_RETRIEVE = route("GET", "/v1/responses/{id}")

_Place = tuple[ModelPool, Replica]


class ResponseFinder:
    """Finds stored responses. `stored`: those that this gateway remembers."""

    def __init__(self, session: aiohttp.ClientSession, stored: StoredResponses) -> None:
        self._session = session
        self.stored = stored
        self._searches = asyncio.Semaphore(SEARCHES)

    def learn(self, tenant: str, response: str, pool: ModelPool, replica: Replica) -> StoredAt:
        """Remember the place of a response."""
        place = StoredAt(pool.deployment.key, replica.endpoint.name, replica.url)
        self.stored.learn(tenant, response, place)
        return place

    async def find(
        self, pools: Sequence[ModelPool], tenant: str, response: object, request_id: str
    ) -> tuple[ModelPool, StoredAt] | None:
        """The pool and the place of a response; None if none of the pools' replicas stores it.

        Raises `ApiError` 503 if a replica could not be asked and no other one stores it.
        """
        if not isinstance(response, str) or not is_response_id(response):
            return None
        known = self.stored.find(tenant, response)
        if known is not None:
            for pool in pools:
                replica = pool.replicas.get(known.url) if pool.deployment.key == known.deployment else None
                if replica is not None and replica.endpoint.name == known.replica:
                    return pool, known
            return None
        place = _tagged(pools, response)
        if place is not None:
            return place[0], self.learn(tenant, response, *place)
        async with self._searches:
            place = await self._search(pools, tenant, response, request_id)
        return None if place is None else (place[0], self.learn(tenant, response, *place))

    async def _search(self, pools: Sequence[ModelPool], tenant: str, response: str, request_id: str) -> _Place | None:
        headers = {HEADER_REQUEST_ID: request_id} | ({HEADER_TENANT: tenant} if tenant else {})
        path = _RETRIEVE.filled(id=response)
        places = _ready(pools)[:MOST_ASKED]
        unasked = False
        for start in range(0, len(places), AT_A_TIME):
            group = places[start : start + AT_A_TIME]
            tasks = [asyncio.create_task(self._ask(place, path, headers)) for place in group]
            try:
                for answer in asyncio.as_completed(tasks):
                    place, stores = await answer
                    unasked |= stores is None
                    if stores:
                        return place
            finally:
                for task in tasks:
                    task.cancel()
        if unasked:
            raise ApiError(
                503,
                f"A replica that may store the response {response!r} did not answer. Try again in a moment.",
                code="model_unavailable",
                retry_after=1,
            )
        return None

    async def _ask(self, place: _Place, path: str, headers: dict[str, str]) -> tuple[_Place, bool | None]:
        """Whether a replica stores a response; None if it did not say."""
        url = place[1].url + path
        try:
            async with self._session.get(url, headers=headers, timeout=_TIMEOUT, allow_redirects=False) as answer:
                # The body is not needed, and may be long: the connection ends here.
                answer.close()
                return place, (answer.status < 300 if answer.status < 500 else None)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return place, None


def _tagged(pools: Iterable[ModelPool], response: str) -> _Place | None:
    tag = tag_of(response)
    if tag is None:
        return None
    replicas = ((pool, replica) for pool in pools for replica in pool.replicas.values())
    return next((place for place in replicas if replica_tag(place[1].endpoint.name) == tag), None)


def _ready(pools: Iterable[ModelPool]) -> list[_Place]:
    return [(pool, replica) for pool in pools for replica in pool.replicas.values() if replica.endpoint.ready]
