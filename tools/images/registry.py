"""Queries to an image registry."""

from __future__ import annotations

import http.client
import ipaddress

_TIMEOUT = 5.0
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, "
    "application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json"
)


def speaks_plain_http(address: str) -> bool:
    """True if a registry on this machine or a private network uses plain HTTP; public registries are not probed."""
    host = address.partition("/")[0]
    if not _is_near(host.rpartition(":")[0] or host):
        return False
    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT)
    try:
        connection.request("GET", "/v2/")
        return connection.getresponse().status in {200, 401}
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def digest_of(address: str, repository: str, tag: str) -> str | None:
    """The digest of an image in a plain HTTP registry, or None if the tag does not exist."""
    host, _, prefix = address.partition("/")
    path = f"/v2/{prefix + '/' if prefix else ''}{repository}/manifests/{tag}"
    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT)
    try:
        connection.request("HEAD", path, headers={"Accept": _MANIFESTS})
        response = connection.getresponse()
        return response.getheader("Docker-Content-Digest") if response.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def is_loopback(address: str) -> bool:
    """True if a registry's address is loopback."""
    host = address.partition("/")[0]
    name = host.rpartition(":")[0] or host
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _is_near(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_private
    except ValueError:
        return False
