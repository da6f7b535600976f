"""kopf as an informer: it reports which object of which resource changed, and nothing else.

No create or update handlers, timers, daemons or indexes: they write annotations, force finalizers or keep deleted
objects. This is the only module that imports kopf.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import aiohttp
import kopf

from octavo_operator.api.resource import Key
from octavo_operator.app.watch_health import WatchHealth
from octavo_operator.app.watch_middleware import watch_middleware
from octavo_operator.kube.client import ApiServerConnection
from octavo_operator.kube.resources import CHILDREN, LLMDEPLOYMENTS, PODS, Resource
from octavo_operator.reconcile.version_tracker import GONE, ObjectChange, version_of
from octavo_protocol import names

Notice = Callable[[ObjectChange], None]
Connect = Callable[[], Awaitable[ApiServerConnection]]
_CHILDREN = (*CHILDREN.values(), PODS)
_WATCHED = (LLMDEPLOYMENTS, *_CHILDREN)
_PLURALS = frozenset(resource.plural for resource in _WATCHED)
_PAGE = 100


class JitteredForever:
    """Endless delays between attempts to reach the API server: when the delays end, kopf exits."""

    longest = 15.0

    def __iter__(self) -> Iterator[float]:
        delay = 0.5
        while True:
            yield delay * random.uniform(0.5, 1.5)  # noqa: S311 - spreads load, guards nothing
            delay = min(delay * 2, self.longest)


def _registry(notice: Notice, connect: Connect, health: WatchHealth) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.AiohttpSession:
        found = await connect()
        info = kopf.ConnectionInfo(
            server=found.server,
            ca_path=found.ca_path,
            ca_data=found.ca_data,
            insecure=found.insecure,
            scheme="Bearer" if found.token else None,
            token=found.token,
            certificate_path=found.certificate_path,
            private_key_path=found.private_key_path,
        )
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            middlewares=[watch_middleware(_PLURALS, health)],
        )
        return kopf.AiohttpSession(server=info.server, aiohttp_session=session)

    async def changed(namespace: str, name: str, **event: Any) -> None:
        notice(_change(Key(namespace, name), **event))

    async def child_changed(namespace: str, meta: Any, **event: Any) -> None:
        notice(_change(Key(namespace, meta["labels"][names.LABEL_NAME]), meta=meta, **event))

    kopf.on.login(registry=registry)(login)
    kopf.on.event(*_selector(LLMDEPLOYMENTS), id=LLMDEPLOYMENTS.plural, registry=registry)(changed)
    for child in _CHILDREN:
        labels = {names.LABEL_NAME: kopf.PRESENT}
        kopf.on.event(*_selector(child), labels=labels, id=child.plural, registry=registry)(child_changed)
    return registry


def _change(key: Key, *, meta: Any, **event: Any) -> ObjectChange:
    version = GONE if event["type"] == "DELETED" else version_of(meta.get("resourceVersion"))
    return ObjectChange(key, meta.get("uid", ""), version)


def _selector(resource: Resource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.plural


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.watching.server_timeout = 290
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 10
    settings.watching.chunk_size = _PAGE
    # kopf keeps each object's last event while the object's task idles: 5 s, the default, means thousands at start.
    settings.queueing.idle_timeout = 0.1
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = JitteredForever()
    settings.process.ultimate_exiting_timeout = 10
    for child in _CHILDREN:
        # The API server filters by this selector; a handler's labels filter only after everything was sent.
        settings.watching.label_selectors[_selector(child)] = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
    return settings


def watches(namespaces: Sequence[str]) -> int:
    """The number of watches."""
    return len(_WATCHED) * max(1, len(namespaces))


async def watch(
    notice: Notice, connect: Connect, namespaces: Sequence[str], stop: asyncio.Event, health: WatchHealth
) -> None:
    """Watch until `stop` is set or the process receives SIGTERM or SIGINT. No `namespaces` means all."""
    await kopf.operator(
        registry=_registry(notice, connect, health),
        settings=_settings(),
        # By default kopf uses the name of the user, which a container may not have.
        identity="octavo-operator",
        standalone=True,
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        stop_flag=stop,
    )
