"""What is known of the model that a spec means: from the templates made for it, or from the Job that looks at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from octavo_operator.api.base import Json
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.observe.messages import short
from octavo_operator.observe.pods import Pod, Problem, observe_pod
from octavo_operator.resources import model_job
from octavo_protocol import names
from octavo_protocol.model import ModelFailure, ModelReport, decode_look

UNKNOWN = ModelReport()


@dataclass(frozen=True, slots=True)
class Inspection:
    """The newest pod of the Job. `said` is the last termination message, `done` whether it ended well."""

    pod: Pod
    said: str = ""
    done: bool = False


@dataclass(frozen=True, slots=True)
class Resolved:
    """The model can be served. `report` is JSON as the Job wrote it, empty when it had nothing to say."""

    report: str
    found: ModelReport


@dataclass(frozen=True, slots=True)
class Pending:
    """Nobody knows yet."""


@dataclass(frozen=True, slots=True)
class InspectionFailed:
    """It cannot be served as it is; the Job goes on trying."""

    reason: str
    message: str


Model = Resolved | Pending | InspectionFailed


def is_look(pod: Json) -> bool:
    """Whether a pod is one that looks at a model, and no server."""
    return bool(pod["metadata"].get("labels", {}).get(names.LABEL_COMPONENT) == model_job.COMPONENT)


def observe_look(bodies: Sequence[Json], owner: LLMDeployment, job: str, events: Sequence[Json]) -> Inspection | None:
    """The look in the pods of the Job of that name; `events` are warnings about them."""
    own = [body for body in bodies if body["metadata"].get("labels", {}).get("batch.kubernetes.io/job-name") == job]
    if not own:
        return None
    newest = max(own, key=lambda body: str(body["metadata"]["creationTimestamp"]))
    uid = newest["metadata"]["uid"]
    about = [event for event in events if event.get("involvedObject", {}).get("uid") == uid]
    return Inspection(
        pod=observe_pod(newest, owner, about, main=model_job.CONTAINER),
        said=_last_words(newest),
        done=newest.get("status", {}).get("phase") == "Succeeded",
    )


def _last_words(body: Json) -> str:
    statuses = body.get("status", {}).get("containerStatuses", [])
    container: Json = next((c for c in statuses if c["name"] == model_job.CONTAINER), {})
    ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}
    said: str = ended.get("message", "")
    return said


def resolve(
    owner: LLMDeployment, templates: Sequence[Json], look: Inspection | None, unseen: Sequence[Problem] = ()
) -> Model:
    """What is known now.

    `templates` are what pods were made from, newest first; `look` is at the spec's model, `unseen` why there is none.
    """
    remembered = (model_job.recorded(owner, template) for template in templates)
    report = next((found for found in remembered if found is not None), None)
    if report is not None:
        return _resolved(report)
    if look is None:
        refused = next(iter(unseen), None)
        return InspectionFailed(refused.reason, refused.message) if refused else Pending()
    if look.done:
        return _resolved(look.said)
    return _failed(owner, look)


def waiting(owner: LLMDeployment, claim: Json | None, events: Sequence[Json]) -> Model:
    """What keeps a look from starting: the claim it is to fill, and the events about that."""
    name = owner.cache_claim
    if not name:
        return Pending()
    if claim is None:
        if owner.spec.cache.claim_name is None:
            return Pending()
        where = f"PersistentVolumeClaim {name!r} is not in namespace {owner.namespace}"
        return InspectionFailed("ClaimNotFound", f"spec.cache.claimName: {where}; create it")
    if claim.get("status", {}).get("phase") == "Bound":
        return Pending()
    said = next(
        (e.get("message", "") for e in events if e.get("reason") in ("ProvisioningFailed", "FailedBinding")), ""
    )
    if not said:
        return Pending()
    if "storageclass" in said and "not found" in said:
        wanted = owner.spec.cache.storage_class_name
        field = f"spec.cache.storageClassName: {wanted!r}" if wanted else f"PersistentVolumeClaim {name!r}"
        return InspectionFailed(
            "StorageClassNotFound", short(f"{field}: {said}; kubectl get storageclass lists those there are")
        )
    return InspectionFailed("ClaimPending", short(f"PersistentVolumeClaim {name!r} gets no volume: {said}"))


def _resolved(report: str) -> Resolved:
    found = _read(report)
    return Resolved(report, found) if isinstance(found, ModelReport) else Resolved("", UNKNOWN)


def _failed(owner: LLMDeployment, look: Inspection) -> Model:
    found = _read(look.said)
    if isinstance(found, ModelFailure):
        secret = owner.spec.model.credentials_secret_ref
        given = f" (it is Secret {secret.name!r} now)" if secret and found.reason == "Unauthorized" else ""
        return InspectionFailed(found.reason, f"spec.model: {owner.spec.model.uri!r}: {found.message}{given}")
    problem = next(iter(look.pod.problems), None)
    return InspectionFailed(problem.reason, problem.message) if problem else Pending()


def _read(said: str) -> ModelReport | ModelFailure | None:
    try:
        return decode_look(said)
    except msgspec.DecodeError:
        return None


def problems(look: Inspection | None, failed: InspectionFailed) -> tuple[Problem, ...]:
    """The failure as one of a pod, for the list of all failures."""
    if look is None:
        return (Problem("", "", failed.reason, failed.message),)
    last = max((problem.last for problem in look.pod.problems), default=0.0)
    count = max((problem.count for problem in look.pod.problems), default=1)
    return (Problem(look.pod.name, model_job.CONTAINER, failed.reason, failed.message, count, last),)
