"""The draft model, which guesses tokens of the model's answers: its source, volume and download."""

from __future__ import annotations

from octavo_operator.api.base import Json
from octavo_operator.api.model_source import DRAFT_MOUNT, ModelSource, parse
from octavo_operator.api.resource import LLMDeployment, digest
from octavo_operator.api.v1alpha1 import Spec
from octavo_operator.resources import source

VOLUME = "draft-model"
PREFETCH = "prefetch-draft"


def of(spec: Spec) -> ModelSource | None:
    """The source of the draft model; None without."""
    model = spec.engine.speculation.model
    return None if model is None else parse(model.uri, DRAFT_MOUNT)


def identity(owner: LLMDeployment) -> str:
    """Ten hex digits, a hash of its URI, revision and credentials Secret; empty without a draft model."""
    model = owner.spec.engine.speculation.model
    if model is None:
        return ""
    secret = owner.spec.model.credentials_secret_ref
    return digest({"uri": model.uri, "revision": model.revision, "secret": secret.name if secret else None})


def target(owner: LLMDeployment, revision: str) -> str:
    """The argument of a download, at the resolved `revision` if any, or the path in its volume; empty without."""
    model, found = owner.spec.engine.speculation.model, of(owner.spec)
    if model is None or found is None:
        return ""
    return source.pinned(model, revision or model.revision) if found.downloads else found.path


def volumes(spec: Spec, revision: str) -> list[Json]:
    """The pod volume of the draft model, if there is one. An image is that of the digest `revision`, if any."""
    found = of(spec)
    return [] if found is None else [source.volume(found, revision, VOLUME)]


def mounts(spec: Spec) -> list[Json]:
    """Where a container mounts it."""
    return [{"name": VOLUME, "mountPath": DRAFT_MOUNT, "readOnly": True}] if of(spec) else []


def prefetch(owner: LLMDeployment, image: str, revision: str) -> list[Json]:
    """The init container that downloads the draft model, at the resolved `revision` if any."""
    found = of(owner.spec)
    if found is None or not found.downloads:
        return []
    mount = {"name": VOLUME, "mountPath": DRAFT_MOUNT}
    return [source.prefetch_container(PREFETCH, image, target(owner, revision), source.env_for(owner, found), mount)]
