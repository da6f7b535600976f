"""The weight cache: a PersistentVolumeClaim that a Job fills once and pods mount read-only."""

from __future__ import annotations

from octavo_operator.api.base import Json
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.resources import source
from octavo_operator.resources.common import child
from octavo_protocol import names

KIND = "PersistentVolumeClaim"


def claim(owner: LLMDeployment) -> Json | None:
    """The claim to create, or None. With `cache.retain` it has no owner reference, so it outlives the resource."""
    cache = owner.spec.cache
    if not owner.cache_claim or cache.claim_name is not None:
        return None
    body = child(owner, "v1", KIND, owner.cache_claim)
    if cache.retain:
        del body["metadata"]["ownerReferences"]
    body["spec"] = {
        "accessModes": list(cache.access_modes or ("ReadWriteOnce",)),
        "resources": {"requests": {"storage": cache.size}},
        **({"storageClassName": cache.storage_class_name} if cache.storage_class_name else {}),
    }
    return body


def is_ours(owner: LLMDeployment, body: Json) -> bool:
    """True for the claim of this resource, or one retained by an earlier resource of the same name."""
    metadata = body["metadata"]
    labels, owners = metadata.get("labels", {}), metadata.get("ownerReferences", [])
    same = labels.get(names.LABEL_MANAGED_BY) == names.MANAGED_BY and labels.get(names.LABEL_NAME) == owner.name
    return same and all(ref.get("uid") == owner.uid for ref in owners)


def volume(owner: LLMDeployment, *, read_only: bool, revision: str = "") -> Json:
    """The pod volume `model`, of an image at its digest `revision` if there is one."""
    if not owner.cache_claim:
        return source.volume(owner.source, revision)
    reference = {"claimName": owner.cache_claim, **({"readOnly": True} if read_only else {})}
    return {"name": source.VOLUME, "persistentVolumeClaim": reference}
