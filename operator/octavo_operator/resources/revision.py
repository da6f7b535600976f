"""The history: what pods were made from, as ControllerRevisions, with notes on how each revision fared."""

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
    """Where a canary stands: its step, when that began and since when its pods are all ready (None: not yet).

    Times are Unix seconds. `falls`: how often in this step a pod that was ready was not any more. Step -1: its objects
    are to go.
    """

    step: int
    begun: float
    held: float | None = None
    falls: int = 0


@dataclass(frozen=True, slots=True)
class Revision:
    """What pods of one revision are made from, once and for all: template, and data of the ConfigMap it mounts.

    `number` orders revisions by when they were last asked for. `served`: all replicas ran it. `failed`: why it was
    given up; empty when it was not.
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
    """The object. Its data never changes; number and notes do."""
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
    """The revision that an object of ours holds."""
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
    """A state somebody has spoilt starts the canary anew: it can only be asked for more evidence by that."""
    try:
        state = json.loads(text)
        return CanaryState(int(state["step"]), float(state["begun"]), state["held"], int(state["falls"]))
    except (ValueError, KeyError, TypeError):
        return CanaryState(-1, 0.0) if text else None
