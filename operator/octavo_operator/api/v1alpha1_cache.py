"""`spec.cache`: where downloaded weights are kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from octavo_operator.api.base import OBJECT_NAME, ApiBlock, Bytes, Rule

AccessMode = Literal["ReadWriteOnce", "ReadWriteMany"]
_OF_CLAIM = ("claimName", "size", "storageClassName", "accessModes")


class Cache(ApiBlock):
    """Cache defines where downloaded weights are stored."""

    RULES = (
        Rule(
            rule="self.type != 'PersistentVolumeClaim' || has(self.size) != has(self.claimName)",
            message="cache.type PersistentVolumeClaim requires exactly one of cache.size (to create a claim) and "
            "cache.claimName (of an existing claim)",
        ),
        *(
            Rule(
                rule=f"!has(self.{field}) || self.type == 'PersistentVolumeClaim'",
                message=f"cache.{field} requires cache.type PersistentVolumeClaim",
            )
            for field in _OF_CLAIM
        ),
        Rule(
            rule="!has(self.claimName) || (!has(self.storageClassName) && !has(self.accessModes))",
            message="cache.storageClassName and cache.accessModes apply to a created claim only: leave them out, or "
            "leave cache.claimName out",
        ),
        Rule(
            rule="!has(oldSelf.size) || !has(self.size) || "
            "(has(self.storageClassName) == has(oldSelf.storageClassName) && "
            "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName))",
            message="cache.storageClassName is immutable; to use another class, name another claim in cache.claimName",
        ),
        Rule(
            rule="!has(oldSelf.size) || !has(self.size) || "
            "quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",
            message="cache.size must not be decreased: a PersistentVolumeClaim cannot shrink",
        ),
    )

    type: Literal["Auto", "EmptyDir", "PersistentVolumeClaim", "ImageVolume"] = Field(
        default="Auto",
        description="type is the kind of storage. EmptyDir lets each pod download its own copy. PersistentVolumeClaim "
        "lets a Job download the model once; pods mount the claim read-only, without credentials and without network "
        "egress. ImageVolume is the image store of the node, for `oci://` models. Auto is ImageVolume for `oci://` "
        "models, and EmptyDir for downloaded models. Defaults to Auto.",
    )
    claim_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        pattern=OBJECT_NAME,
        description="claimName is the name of an existing PersistentVolumeClaim in the same namespace. For type "
        "PersistentVolumeClaim, exactly one of claimName and size must be set.",
    )
    size: Bytes | None = Field(
        default=None,
        description="size is the storage request of the PersistentVolumeClaim to create, a quantity such as 50Gi. It "
        "can be increased but not decreased. For type PersistentVolumeClaim, exactly one of claimName and size must "
        "be set.",
    )
    storage_class_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        pattern=OBJECT_NAME,
        description="storageClassName is the name of the StorageClass of the PersistentVolumeClaim to create. It is "
        "immutable. If unset, the default StorageClass of the cluster is used.",
    )
    access_modes: Annotated[
        tuple[AccessMode, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = Field(
        default=(),
        max_length=2,
        description="accessModes are the access modes of the PersistentVolumeClaim to create. ReadWriteOnce allows "
        "mounts on one node. ReadWriteMany allows mounts on several nodes, which replicas on several nodes require. "
        "Defaults to ReadWriteOnce.",
    )
    retain: bool = Field(
        default=True,
        description="retain indicates whether the created PersistentVolumeClaim is kept when the LLMDeployment is "
        "deleted. A later LLMDeployment with the same name uses it again. If false, the claim is deleted with the "
        "LLMDeployment. Defaults to true.",
    )
