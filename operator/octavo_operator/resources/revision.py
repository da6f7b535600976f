"""The revision history as ControllerRevisions: what pods are built from, and the outcome of each revision."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from octavo_operator.api.base import Json
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.resources.common import LABEL_REVISION, child
from octavo_protocol import names

KIND = "ControllerRevision"
ANNOTATION_SERVED = f"{names.API_GROUP}/served"
ANNOTATION_FAILED = f"{names.API_GROUP}/failed"
ANNOTATION_CANARY = f"{names.API_GROUP}/canary-state"


@dataclass(frozen=True, slots=True)
class CanaryState:
    """Progress of a canary: its step, when the step began, and since when all its pods are ready (None: not yet).

    Times are Unix seconds. `falls`: how often a ready pod became unready in this step. Step -1: the canary's objects
    are to be deleted.
    """

    step: int
    begun: float
    held: float | None = None
    falls: int = 0


@dataclass(frozen=True, slots=True)
class Revision:
    """The immutable source of one revision's pods: the template, and the data of the ConfigMap that it mounts.

    `number` orders revisions by the last time that the spec asked for them. `served`: all replicas ran it. `failed`:
    why its rollout failed; empty if it did not.
    """

    name: str
    number: int
    template: Json
    settings: Mapping[str, str]
    served: bool = False
    failed: str = ""
    canary: CanaryState | None = None


def object_name(owner: LLMDeployment, revision: str) -> str:
    """Name of the ControllerRevision of a revision."""
    return f"{owner.name}-{revision}"


def controller_revision(owner: LLMDeployment, revision: Revision) -> Json:
    """The ControllerRevision. Its data never changes; its number and annotations do."""
    notes = {
        ANNOTATION_SERVED: "true" if revision.served else "",
        ANNOTATION_FAILED: revision.failed,
        ANNOTATION_CANARY: _state(revision.canary),
    }
    noted = {name: value for name, value in notes.items() if value}
    body = child(owner, "apps/v1", KIND, object_name(owner, revision.name), noted)
    body["metadata"]["labels"] |= {LABEL_REVISION: revision.name}
    data = {"template": revision.template, "settings": dict(revision.settings)}
    return {**body, "revision": revision.number, "data": data}


def recorded(body: Json) -> Revision:
    """The revision stored in a ControllerRevision of this operator."""
    notes = body["metadata"].get("annotations", {})
    return Revision(
        name=body["metadata"]["labels"][LABEL_REVISION],
        number=body["revision"],
        template=body["data"]["template"],
        settings=body["data"]["settings"],
        served=notes.get(ANNOTATION_SERVED) == "true",
        failed=notes.get(ANNOTATION_FAILED, ""),
        canary=_parsed(notes.get(ANNOTATION_CANARY, "")),
    )


def _state(canary: CanaryState | None) -> str:
    if canary is None:
        return ""
    return json.dumps({"step": canary.step, "begun": canary.begun, "held": canary.held, "falls": canary.falls})


def _parsed(text: str) -> CanaryState | None:
    """The canary state in an annotation. A corrupt one restarts the canary, which only collects more evidence."""
    try:
        state = json.loads(text)
        return CanaryState(int(state["step"]), float(state["begun"]), state["held"], int(state["falls"]))
    except (ValueError, KeyError, TypeError):
        return CanaryState(-1, 0.0) if text else None
