"""The page at `/`: the models that a key may use, their replicas and load, and a chat."""

from __future__ import annotations

import msgspec
from aiohttp import web

from octavo_common.page import FILES, HEADERS, PATH_STATE, ModelState, PageFile, PageState, replica_state
from octavo_gateway.access.api_keys import ApiKey
from octavo_gateway.http.request_keys import ENTRY
from octavo_gateway.pool.model_pool import ModelPool
from octavo_gateway.pool.registry import ModelRegistry

OPEN_PAGE_PATHS = frozenset(file.path for file in FILES)
"""Its paths that need no key."""


def add_page(app: web.Application, registry: ModelRegistry, version: str) -> None:
    """Add the page's routes."""

    async def state(request: web.Request) -> web.Response:
        found = page_state(registry, request[ENTRY], version)
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    for file in FILES:
        _add_file(app, file)
    app.router.add_get(PATH_STATE, state)


def page_state(registry: ModelRegistry, entry: ApiKey, version: str) -> PageState:
    """What the owner of a key sees: replicas have no names or addresses."""
    pools = [pool for pool in registry.pools() if entry.may_use(pool.deployment.names)]
    return PageState(version, [model_state(pool) for pool in pools], gateway=True)


def model_state(pool: ModelPool) -> ModelState:
    """The replicas that have reported, and whether one of them accepts requests."""
    now = pool.clock()
    replicas = [
        replica_state(replica.report, ready=replica.accepts(now))
        for replica in pool.replicas.values()
        if replica.report is not None
    ]
    ready = any(replica.ready for replica in replicas)
    return ModelState(list(pool.deployment.models), ready, replicas, held=len(pool.queue))


def _add_file(app: web.Application, file: PageFile) -> None:
    content = file.read()

    async def send(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type=file.media_type, charset="utf-8", headers=HEADERS)

    app.router.add_get(file.path, send)
