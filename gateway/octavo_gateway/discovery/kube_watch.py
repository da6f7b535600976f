"""Mirrors Services and EndpointSlices of the watched namespaces, by list and watch.

While the API server is unreachable the last known state stays in use, so requests continue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from kubernetes.aio import client, config

from octavo_gateway.discovery.endpoints import Key, ModelTable, Object, build
from octavo_protocol import names

log = logging.getLogger(__name__)

SELECTOR = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY},{names.LABEL_NAME}"
PAGE = 500
WATCH_SECONDS = 240
# Bookmarks arrive about once a minute: a longer silence means a dead connection, not a cluster without changes.
SILENCE_SECONDS = 120.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
# Changes come in bursts (a rollout, a relist): each burst makes one new table.
SETTLE_SECONDS = 0.02
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_Call = Callable[..., Awaitable[aiohttp.ClientResponse]]


class ExpiredError(Exception):
    """The resource version is too old: list again."""


class WatchRefusedError(Exception):
    """The API server answered with an error."""


@dataclass(slots=True)
class Mirror:
    """Objects of one resource in one namespace (or all), as last listed and watched."""

    what: str
    call: _Call
    objects: dict[Key, Object] = field(default_factory=dict)
    listed: bool = False
    version: str = ""

    async def list(self) -> None:
        """Relist all objects, in pages."""
        found: dict[Key, Object] = {}
        more: str | None = None
        while True:
            response = await self.call(label_selector=SELECTOR, limit=PAGE, _continue=more, _request_timeout=30.0)
            async with response:
                _check(response.status, self.what)
                page = msgspec.json.decode(await response.read())
            found.update((_name(item), item) for item in page.get("items") or ())
            more = page["metadata"].get("continue")
            if not more:
                self.objects, self.version, self.listed = found, page["metadata"]["resourceVersion"], True
                return

    async def watch(self) -> AsyncIterator[None]:
        """Follow changes from the current version; yields after each until the server ends the watch."""
        response = await self.call(
            label_selector=SELECTOR,
            watch=True,
            allow_watch_bookmarks=True,
            resource_version=self.version,
            timeout_seconds=WATCH_SECONDS,
            _request_timeout=WATCH_SECONDS + 30.0,
        )
        async with response:
            _check(response.status, self.what)
            tail = b""
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    chunk = await response.content.readany()
                if not chunk:
                    return
                *lines, tail = (tail + chunk).split(b"\n")
                changed = [self._apply(msgspec.json.decode(line)) for line in lines if line.strip()]
                if any(changed):
                    yield

    def _apply(self, event: Any) -> bool:
        """Apply one event; True if an object changed."""
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            _check(int(item.get("code", 500)), self.what)
        self.version = item["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return False
        if kind == "DELETED":
            self.objects.pop(_name(item), None)
        else:
            self.objects[_name(item)] = item
        return True


async def follow(mirror: Mirror, changed: Callable[[], None], random: Callable[[], float]) -> None:
    """Keep one mirror current until cancelled: relist if the version expired, back off if the server is unreachable."""
    clock = asyncio.get_running_loop().time
    pause = FIRST_PAUSE
    while True:
        began = clock()
        try:
            if not mirror.version:
                await mirror.list()
                changed()
            async for _ in mirror.watch():
                changed()
                pause = FIRST_PAUSE
            # A server that ends every watch at once must not cause a tight loop of requests.
            await asyncio.sleep(max(0.0, FIRST_PAUSE - (clock() - began)))
        except ExpiredError:
            log.info("watch of %s expired, listing again", mirror.what)
            mirror.version = ""
            await asyncio.sleep(FIRST_PAUSE * random())
        except (WatchRefusedError, aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
            log.warning("watch of %s interrupted, next try in about %.1f s: %r", mirror.what, pause, error)
            await asyncio.sleep(pause * (0.5 + random()))
            pause = min(LONGEST_PAUSE, 2 * pause)


class Watcher:
    """Services and EndpointSlices of some namespaces (None: all of them), as tables."""

    def __init__(self, api: client.ApiClient, namespaces: tuple[str, ...] | None, random: Callable[[], float]) -> None:
        self._random = random
        self._services = list(_mirrors(client.CoreV1Api(api), "service", namespaces))
        self._slices = list(_mirrors(client.DiscoveryV1Api(api), "endpoint_slice", namespaces))
        self._changed = asyncio.Event()

    async def run(self, update: Callable[[ModelTable], None]) -> None:
        """Call `update` with the first complete table and with every later one, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for mirror in (*self._services, *self._slices):
                tasks.create_task(follow(mirror, self._changed.set, self._random))
            tasks.create_task(self._tables(update))

    async def _tables(self, update: Callable[[ModelTable], None]) -> None:
        conflicts: tuple[str, ...] = ()
        while True:
            await self._changed.wait()
            await asyncio.sleep(SETTLE_SECONDS)
            self._changed.clear()
            if not all(mirror.listed for mirror in (*self._services, *self._slices)):
                continue
            table = build(
                (item for mirror in self._services for item in mirror.objects.values()),
                (item for mirror in self._slices for item in mirror.objects.values()),
            )
            if table.conflicts and table.conflicts != conflicts:
                log.warning("model names claimed twice, the first one gets them: %s", "; ".join(table.conflicts))
            conflicts = table.conflicts
            update(table)


@asynccontextmanager
async def connect(kubeconfig: Path | None) -> AsyncIterator[client.ApiClient]:
    """An API client: from `kubeconfig`, else from the pod this runs in, else from the default kubeconfig.

    Raises `config.ConfigException` if none of them exists.
    """
    settings = client.Configuration()
    settings.connection_pool_maxsize = 0
    if kubeconfig is not None or not _in_pod():
        path = str(kubeconfig) if kubeconfig else None
        await config.load_kube_config(config_file=path, client_configuration=settings)
    else:
        config.load_incluster_config(client_configuration=settings)
    async with client.ApiClient(settings) as api:
        yield api


def own_namespace() -> str:
    """The namespace of the pod this runs in, else `default`."""
    return NAMESPACE_FILE.read_text().strip() if _in_pod() else "default"


def _in_pod() -> bool:
    return NAMESPACE_FILE.exists()


def _mirrors(api: Any, resource: str, namespaces: tuple[str, ...] | None) -> Iterator[Mirror]:
    if namespaces is None:
        yield Mirror(f"{resource}s", getattr(api, f"list_{resource}_for_all_namespaces_without_preload_content"))
        return
    call = getattr(api, f"list_namespaced_{resource}_without_preload_content")
    for namespace in namespaces:
        yield Mirror(f"{resource}s in {namespace}", _bound(call, namespace))


def _bound(call: _Call, namespace: str) -> _Call:
    async def bound(**arguments: Any) -> aiohttp.ClientResponse:
        return await call(namespace, **arguments)

    return bound


def _check(status: int, what: str) -> None:
    if status == 410:
        raise ExpiredError
    if status >= 400:
        raise WatchRefusedError(f"{what}: HTTP {status}")


def _name(item: Object) -> Key:
    metadata = item["metadata"]
    return metadata["namespace"], metadata["name"]
