"""Small images made of files alone, pushed over the registry's HTTP API: models that are not what they should be."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any
from urllib.request import Request, urlopen

_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_TIMEOUT = 30

Json = dict[str, Any]


def push(registry: str, repository: str, files: Mapping[str, bytes], base: str = "") -> str:
    """Push an image that holds `files` to the registry at host:port; its reference as the nodes spell it.

    `base` is an image of the same registry (`REPOSITORY:TAG`) whose files it holds, too. The tag follows from the
    content: nodes keep what they pulled under a tag.
    """
    tar = _tar(files)
    layer = gzip.compress(tar, mtime=0)
    layers, differences = _mount(registry, repository, base) if base else ([], [])
    rootfs = {"type": "layers", "diff_ids": [*differences, _digest(tar)]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}).encode()
    for blob in (layer, config):
        _upload(registry, repository, blob)
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": {"mediaType": _CONFIG, "digest": _digest(config), "size": len(config)},
        "layers": [*layers, {"mediaType": _LAYER, "digest": _digest(layer), "size": len(layer)}],
    }
    tag = hashlib.sha256(config).hexdigest()[:12]
    url = f"http://{registry}/v2/{repository}/manifests/{tag}"
    _send(Request(url, json.dumps(manifest).encode(), {"Content-Type": _MANIFEST}, method="PUT"))
    return f"localhost:5000/{repository}:{tag}"


def _mount(registry: str, repository: str, base: str) -> tuple[list[Json], list[str]]:
    """The layers of an image, mounted into another repository, and the digests of what they hold."""
    name, _, tag = base.partition(":")
    url = f"http://{registry}/v2/{name}"
    manifest = _get(Request(f"{url}/manifests/{tag}", headers={"Accept": _MANIFEST}))  # noqa: S310
    config = _get(Request(f"{url}/blobs/{manifest['config']['digest']}"))  # noqa: S310
    for layer in manifest["layers"]:
        query = f"mount={layer['digest']}&from={name}"
        _send(Request(f"http://{registry}/v2/{repository}/blobs/uploads/?{query}", b"", method="POST"))
    return manifest["layers"], config["rootfs"]["diff_ids"]


def _get(request: Request) -> Json:
    with urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310 - the cluster's own registry
        found: Json = json.load(answer)
        return found


def _upload(registry: str, repository: str, blob: bytes) -> None:
    location = _send(Request(f"http://{registry}/v2/{repository}/blobs/uploads/", b"", method="POST"))
    separator = "&" if "?" in location else "?"
    url = f"{location}{separator}digest={_digest(blob)}"
    headers = {"Content-Type": "application/octet-stream"}
    _send(Request(url, blob, headers, method="PUT"))  # noqa: S310 - the cluster's own registry


def _send(request: Request) -> str:
    """Where the registry says that the thing is now."""
    with urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310 - the cluster's own registry
        return answer.headers.get("Location", "")


def _tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
