"""`spec.cache`: where downloaded weights are kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from octavo_operator.api.base import OBJECT_NAME, ApiBlock, Bytes, Rule

AccessMode = Literal["ReadWriteOnce", "ReadWriteMany"]
_OF_CLAIM = ("claimName", "size", "storageClassName", "accessModes")


class Cache(ApiBlock):
    """Where downloaded weights are kept."""

    RULES = (
        Rule(
            rule="self.type != 'PersistentVolumeClaim' || has(self.size) != has(self.claimName)",
            message="cache.type PersistentVolumeClaim needs either cache.size, for a claim that is made, or "
            "cache.claimName, of one that is there",
        ),
        *(
            Rule(
                rule=f"!has(self.{field}) || self.type == 'PersistentVolumeClaim'",
                message=f"cache.{field} is for cache.type PersistentVolumeClaim",
            )
            for field in _OF_CLAIM
        ),
        Rule(
            rule="!has(self.claimName) || (!has(self.storageClassName) && !has(self.accessModes))",
            message="cache.storageClassName and cache.accessModes are for a claim that is made: leave them out, or "
            "cache.claimName",
        ),
        Rule(
            rule="!has(oldSelf.size) || !has(self.size) || "
            "(has(self.storageClassName) == has(oldSelf.storageClassName) && "
            "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName))",
            message="cache.storageClassName is immutable: a claim cannot change it; name another claim "
            "in cache.claimName",
        ),
        Rule(
            rule="!has(oldSelf.size) || !has(self.size) || "
            "quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",
            message="cache.size can grow and not shrink: a claim cannot",
        ),
    )

    type: Literal["Auto", "EmptyDir", "PersistentVolumeClaim", "ImageVolume"] = Field(
        default="Auto",
        description="`EmptyDir`: every pod downloads its own copy. `PersistentVolumeClaim`: a Job downloads once, pods "
        "mount the claim read-only and have neither token nor way out. `ImageVolume`: the node's image store, for "
        "`oci://`. `Auto`: `ImageVolume` for `oci://`, `EmptyDir` for what is downloaded.",
    )
    claim_name: str | None = Field(
        default=None, min_length=1, max_length=253, pattern=OBJECT_NAME, description="A claim that is there already."
    )
    size: Bytes | None = Field(default=None, description="Size of the claim to make, e.g. `50Gi`.")
    storage_class_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        pattern=OBJECT_NAME,
        description="Storage class of the claim to make; the cluster's default when not given. Immutable.",
    )
    access_modes: Annotated[
        tuple[AccessMode, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = Field(
        default=(),
        max_length=2,
        description="Access modes of the claim to make; `ReadWriteOnce` when none is given. Replicas on several nodes "
        "need `ReadWriteMany`.",
    )
    retain: bool = Field(
        default=True, description="Keep the claim that was made when the resource is deleted; the next one finds it."
    )
