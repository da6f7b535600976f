"""Where a model comes from, as its URI says."""

from __future__ import annotations

from dataclasses import dataclass

MOUNT = "/model"
"""Where the server's container finds the weights."""

DRAFT_MOUNT = "/draft"
"""Where it finds those of the draft model."""

DOWNLOADED = frozenset({"hf", "s3", "gs"})
"""Schemes of models that are fetched over the network; the others are volumes."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model URI, taken apart. `path` is where the server finds the weights in its container."""

    scheme: str
    reference: str
    path: str

    @property
    def tagged(self) -> bool:
        """Whether it is an image whose reference has no digest."""
        return self.scheme == "oci" and "@" not in self.reference

    @property
    def remote(self) -> bool:
        """Whether an inspection has to reach its host: to fetch weights, or to resolve a tag."""
        return self.downloads or self.tagged

    @property
    def registry_port(self) -> int:
        """TCP port of the registry of an image."""
        host, slash, _ = self.reference.partition("/")
        port = host.rpartition(":")[2]
        return int(port) if slash and port.isdecimal() and 0 < int(port) < 1 << 16 else 443

    @property
    def downloads(self) -> bool:
        """Whether the weights have to be fetched over the network."""
        return self.scheme in DOWNLOADED


def parse(uri: str, mount: str = MOUNT) -> ModelSource:
    """The source that a valid `model.uri` names, with its volume at `mount`."""
    scheme, _, reference = uri.partition("://")
    if scheme != "pvc":
        return ModelSource(scheme, reference, mount)
    claim, _, path = reference.partition("/")
    return ModelSource(scheme, claim, f"{mount}/{path.strip('/')}".rstrip("/"))
