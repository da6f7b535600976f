"""A minimal API client, to wait for a cluster and to install its DNS."""

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from localcluster.errors import ClusterError
from localcluster.pki import Pki


@dataclass(frozen=True, slots=True)
class Api:
    """An API server, and the client certificate for it."""

    server: str
    context: ssl.SSLContext

    def get(self, path: str) -> Any:
        """The JSON at `path`; raises OSError (urllib's errors are OSErrors)."""
        return json.loads(self._call("GET", path, None))

    def apply(self, path: str, manifest: dict[str, Any]) -> None:
        """Server-side apply; raises ClusterError with the server's message if it rejects the object."""
        try:
            self._call("PATCH", f"{path}?fieldManager=localcluster&force=true", json.dumps(manifest).encode())
        except urllib.error.HTTPError as error:
            raise ClusterError(f"the API server rejected {path}: {error.read().decode(errors='replace')}") from error

    def ready(self) -> bool:
        """True if /readyz returns 200."""
        try:
            return self._call("GET", "/readyz", None) == b"ok"
        except OSError:
            return False

    def _call(self, method: str, path: str, body: bytes | None) -> bytes:
        request = urllib.request.Request(  # noqa: S310 (always https: the URL is that of our own server)
            self.server + path, data=body, method=method, headers={"Content-Type": "application/apply-patch+yaml"}
        )
        with urllib.request.urlopen(request, context=self.context, timeout=10) as answer:  # noqa: S310
            content: bytes = answer.read()
        return content


def connect(server: str, pki: Pki, user: str = "admin") -> Api:
    """An Api that authenticates with a client certificate of the cluster's PKI."""
    context = ssl.create_default_context(cafile=str(pki.crt("ca")))
    context.load_cert_chain(str(pki.crt(user)), str(pki.key(user)))
    return Api(server, context)


def node_ready(api: Api, name: str) -> bool:
    """True if the node exists and is Ready; False also if the server does not respond."""
    try:
        conditions = api.get(f"/api/v1/nodes/{name}")["status"].get("conditions", [])
    except OSError:
        return False
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def wait(what: str, condition: Callable[[], bool], seconds: float, failed: Callable[[], str | None]) -> None:
    """Polls until `condition`; raises ClusterError after `seconds`, or as soon as `failed` returns a reason."""
    end = time.monotonic() + seconds
    while not condition():
        if reason := failed():
            raise ClusterError(f"{what}: {reason}")
        if time.monotonic() > end:
            raise ClusterError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)
