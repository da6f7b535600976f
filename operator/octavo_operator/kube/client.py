"""The API server as nine verbs on plain dicts."""

from __future__ import annotations

import asyncio
import copy
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from octavo_common.failpoints import Failpoints
from octavo_operator.kube.errors import (
    ConflictError,
    FencedError,
    KubeError,
    NotFoundError,
    TransientError,
    from_response,
)
from octavo_operator.kube.resources import LEASES, Resource
from octavo_operator.kube.throttle import Throttle

Json = dict[str, Any]
Observer = Callable[[str, int], None]

MANAGER = "octavo-operator"
STATUS_MANAGER = "octavo-operator-status"
_TIMEOUT = 30.0
_PAGE = 500
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
# Exempt from the throttle: leader election must not depend on the number of other calls.
_URGENT = f"/apis/{LEASES.group}/"


@dataclass(frozen=True, slots=True)
class ApiServerConnection:
    """Address and credentials of the API server, for other HTTP clients. `token` has no scheme."""

    server: str
    ca_path: str | None
    ca_data: str | None
    insecure: bool
    token: str | None
    certificate_path: str | None
    private_key_path: str | None


async def connection() -> ApiServerConnection:
    """The connection of `KubeClient.connect`, read again on each call because service account tokens rotate."""
    configuration = await _configuration()
    token = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    return ApiServerConnection(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        ca_data=None if configuration.ssl_ca_cert else configuration.ca_cert_data,
        insecure=not configuration.verify_ssl,
        token=token.split()[-1] if token else None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )


async def _configuration() -> Configuration:
    configuration = Configuration()
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        config.load_incluster_config(client_configuration=configuration)
    else:
        await config.load_kube_config(client_configuration=configuration)
    return configuration


def _ignore(verb: str, status: int) -> None:
    """The default observer: does nothing."""


class KubeClient:
    """Calls to one API server. Raises only the errors of `kube.errors`.

    `observer` gets the verb and the HTTP status (0 without a response) of every call.
    """

    def __init__(self, api: ApiClient, *, observer: Observer = _ignore, environment: Mapping[str, str] = {}) -> None:
        self._api = api
        self._observer = observer
        self._failpoints = Failpoints.from_environment(environment)
        self._throttle = Throttle()
        self._left: Callable[[], float] | None = None

    @classmethod
    async def connect(cls, observer: Observer = _ignore) -> Self:
        """A client from the pod's service account, or else from the kubeconfig."""
        api = ApiClient(configuration=await _configuration())
        return cls(api, observer=observer, environment=os.environ)

    def fenced(self, left: Callable[[], float]) -> Self:
        """A client that writes only while `left()`, in seconds, is positive.

        A write times out when `left` ends. A write that was sent is awaited even if its caller is cancelled. So when
        the Lease is released afterwards, no write is in flight.
        """
        client = copy.copy(self)
        client._left = left  # noqa: SLF001 - same class
        return client

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """One object; None if it does not exist."""
        try:
            return await self._call("GET", resource.path(namespace, name))
        except NotFoundError:
            return None

    async def list(
        self, resource: Resource, namespace: str | None, *, labels: str | None = None, fields: str | None = None
    ) -> list[Json]:
        """All objects that match the selectors."""
        return [item async for page in self.pages(resource, namespace, labels=labels, fields=fields) for item in page]

    async def pages(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        size: int = _PAGE,
    ) -> AsyncIterator[Sequence[Json]]:
        """The same in pages of at most `size`. Each object has apiVersion and kind, which list items lack."""
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
        query = {"limit": str(size), "labelSelector": labels, "fieldSelector": fields, "continue": None}
        while True:
            page = await self._call("GET", resource.path(namespace), query)
            query["continue"] = page["metadata"].get("continue")
            yield tuple({**head, **item} for item in page.get("items") or [])
            if not query["continue"]:
                return

    async def create(self, resource: Resource, body: Json) -> Json:
        """Create an object. Raises ConflictError if it exists."""
        return await self._call("POST", resource.path(body["metadata"]["namespace"]), body=body)

    async def replace(self, resource: Resource, body: Json) -> Json:
        """Replace an object. Raises ConflictError if its resourceVersion is outdated."""
        meta = body["metadata"]
        return await self._call("PUT", resource.path(meta["namespace"], meta["name"]), body=body)

    async def apply(self, resource: Resource, body: Json) -> Json:
        """Server-side apply: this manager owns the fields of `body`; fields it owned before are removed."""
        meta = body["metadata"]
        query = {"fieldManager": MANAGER, "force": "true", "fieldValidation": "Strict"}
        path = resource.path(meta["namespace"], meta["name"])
        return await self._call("PATCH", path, query, body, content_type=_APPLY)

    async def apply_status(self, resource: Resource, namespace: str, name: str, status: Json) -> Json:
        """Server-side apply of the whole status, under a separate field manager."""
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"namespace": namespace, "name": name},
            "status": status,
        }
        query = {"fieldManager": STATUS_MANAGER, "force": "true", "fieldValidation": "Strict"}
        path = resource.path(namespace, name, "status")
        return await self._call("PATCH", path, query, body, content_type=_APPLY)

    async def annotate(
        self, resource: Resource, namespace: str, name: str, annotations: Mapping[str, str | None]
    ) -> None:
        """Set annotations of an object that others own; None removes one. A missing object is ignored."""
        metadata = {"namespace": namespace, "name": name, "annotations": dict(annotations)}
        try:
            await self.merge(resource, {"metadata": metadata})
        except NotFoundError:
            return

    async def merge(self, resource: Resource, body: Json) -> Json:
        """JSON merge patch of an existing object: lists are replaced as a whole."""
        meta = body["metadata"]
        path = resource.path(meta["namespace"], meta["name"])
        return await self._call("PATCH", path, {"fieldManager": MANAGER}, body, content_type=_MERGE)

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        """Delete the object with this uid. A missing object, or another one of this name, is ignored."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._call("DELETE", resource.path(namespace, name), body=body)
        except (NotFoundError, ConflictError):
            return

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | None] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        what = f"{method} {path}"
        if not path.startswith(_URGENT):
            await self._throttle.wait()
        if method == "GET":
            return await self._send(method, path, query, body, content_type, _TIMEOUT)
        self._failpoints.hit("kube.write")
        if self._left is None:
            answer = await self._send(method, path, query, body, content_type, _TIMEOUT)
        else:
            left = self._left()
            if left <= 0:
                raise FencedError(0, f"{what}: not sent, the lease has expired")
            sent = asyncio.ensure_future(self._send(method, path, query, body, content_type, min(left, _TIMEOUT)))
            try:
                answer = await asyncio.shield(sent)
            except asyncio.CancelledError:
                await asyncio.gather(sent, return_exceptions=True)
                raise
        self._failpoints.hit("kube.written")
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | None] | None,
        body: Json | None,
        content_type: str,
        timeout: float,  # noqa: ASYNC109 - passed to the HTTP client, which closes the connection
    ) -> Json:
        what = f"{method} {path}"
        url = path + "?" + urlencode({k: v for k, v in (query or {}).items() if v is not None})
        try:
            serialized = await self._api.param_serialize(
                method,
                url.rstrip("?"),
                query_params=[],
                header_params={"Accept": "application/json", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self._api.call_api(*serialized, _request_timeout=timeout)
            data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._observer(method, 0)
            raise TransientError(0, f"{what}: no response from the API server: {error!r}") from error
        self._observer(method, response.status)
        if not 200 <= response.status <= 299:
            failed = from_response(response.status, data, what, response.getheader("Retry-After", ""))
            self._throttle.ask(failed.retry_after)
            raise failed
        try:
            answer = json.loads(data)
        except ValueError as error:
            raise TransientError(response.status, f"{what}: the response is not JSON") from error
        if not isinstance(answer, dict):
            raise TransientError(response.status, f"{what}: the response is not a JSON object")
        return answer


__all__ = ["MANAGER", "STATUS_MANAGER", "KubeClient", "KubeError"]
