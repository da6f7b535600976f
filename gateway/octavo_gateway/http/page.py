"""The page at `/`: a model that a key may use, its replicas and load, and a chat."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from aiohttp import web

from octavo_common.page import FILES, HEADERS, PATH_STATE, PageFile, PageState, ReplicaState, replica_state
from octavo_common.page.rates import RecentRates, rates, rounded
from octavo_gateway.discovery.endpoints import Key
from octavo_gateway.pool.model_pool import ModelPool
from octavo_gateway.pool.replica import REPORT_SECONDS, Replica

PAGE_PATHS = frozenset(file.path for file in FILES)
"""The paths of its files, which need no key."""


class Page:
    """The page's routes. `find`: the pool of the model that a request names, if its key may use it."""

    def __init__(self, find: Callable[[web.Request, str], ModelPool], version: str) -> None:
        self._find = find
        self._version = version
        # Of each model that was shown, by the addresses of its replicas.
        self._recent: dict[Key, dict[str, RecentRates]] = {}

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        for file in FILES:
            _add_file(app, file)
        app.router.add_get(PATH_STATE, self._state)

    async def _state(self, request: web.Request) -> web.Response:
        found = self.state_of(self._find(request, request.query.get("model", "")))
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    def state_of(self, pool: ModelPool) -> PageState:
        """What the owner of a key sees of a model: replicas have no names or addresses, and tokens are not counted."""
        now = pool.clock()
        replicas = list(pool.replicas.values())
        tokens, hits = rounded(rates(self._rates_of(pool)))
        return PageState(
            version=self._version,
            ready=any(_ready(replica, now) for replica in replicas),
            replicas=[_replica_state(replica, now) for replica in replicas],
            tokens_per_second=tokens,
            prefix_hits=hits,
            gateway=True,
            held=len(pool.queue),
        )

    def _rates_of(self, pool: ModelPool) -> list[RecentRates]:
        before = self._recent.get(pool.deployment.key, {})
        recent = {url: before.get(url) or RecentRates() for url in pool.replicas}
        self._recent[pool.deployment.key] = recent
        for url, replica in pool.replicas.items():
            if replica.report is not None:
                recent[url].add(replica.report, replica.reported_at)
        return list(recent.values())


def _replica_state(replica: Replica, now: float) -> ReplicaState:
    report = replica.report
    if report is None or now - replica.reported_at > REPORT_SECONDS:
        return ReplicaState(ready=_ready(replica, now))
    return replica_state(report, ready=_ready(replica, now))


def _ready(replica: Replica, now: float) -> bool:
    return replica.accepts(now) and (replica.report is None or replica.report.ready)


def _add_file(app: web.Application, file: PageFile) -> None:
    content = file.read()

    async def send(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type=file.media_type, charset="utf-8", headers=HEADERS)

    app.router.add_get(file.path, send)
