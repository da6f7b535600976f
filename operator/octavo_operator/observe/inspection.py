"""The model of a spec as resolved: from existing pod templates, or by the Job that inspects it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from octavo_operator.api.base import Json
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.observe.messages import short
from octavo_operator.observe.pods import Pod, Problem, observe_pod
from octavo_operator.resources import draft, model_job, source
from octavo_operator.resources.model_job import Pins
from octavo_protocol import names
from octavo_protocol.model import ModelFailure, ModelReport, decode_inspection, encode_inspection

UNKNOWN = ModelReport()


@dataclass(frozen=True, slots=True)
class Inspection:
    """The newest pod of the Job. `message`: its last termination message; `done`: it succeeded.

    `digests`: of the images of the model and of the draft model, where the kubelet reports them (feature gate
    ImageVolumeWithDigest).
    """

    pod: Pod
    message: str = ""
    done: bool = False
    digests: Pins = Pins()  # noqa: RUF009 - frozen


@dataclass(frozen=True, slots=True)
class Resolved:
    """The model can be served. `report`: the Job's JSON, empty if there is none."""

    report: str
    found: ModelReport


@dataclass(frozen=True, slots=True)
class Pending:
    """The model is not resolved yet."""


@dataclass(frozen=True, slots=True)
class InspectionFailed:
    """The model cannot be served; the Job retries."""

    reason: str
    message: str


Model = Resolved | Pending | InspectionFailed


def is_inspection(pod: Json) -> bool:
    """True for a pod of the model inspection Job."""
    return bool(pod["metadata"].get("labels", {}).get(names.LABEL_COMPONENT) == model_job.COMPONENT)


def observe_inspection(
    bodies: Sequence[Json],
    owner: LLMDeployment,
    job: str,
    events: Sequence[Json],
    container: str = model_job.CONTAINER,
) -> Inspection | None:
    """The inspection from the pods of the Job named `job`; `events`: warnings about them."""
    own = [body for body in bodies if body["metadata"].get("labels", {}).get("batch.kubernetes.io/job-name") == job]
    if not own:
        return None
    newest = max(own, key=lambda body: str(body["metadata"]["creationTimestamp"]))
    uid = newest["metadata"]["uid"]
    about = [event for event in events if event.get("involvedObject", {}).get("uid") == uid]
    return Inspection(
        pod=observe_pod(newest, owner, about, main=container),
        message=_final_message(newest, container),
        done=newest.get("status", {}).get("phase") == "Succeeded",
        digests=Pins(_image_digest(newest, source.VOLUME), _image_digest(newest, draft.VOLUME)),
    )


def _container(body: Json, name: str = model_job.CONTAINER) -> Json:
    statuses = body.get("status", {}).get("containerStatuses", [])
    return next((c for c in statuses if c["name"] == name), {})


def _image_digest(body: Json, volume: str) -> str:
    mounts = _container(body).get("volumeMounts") or []
    status: Json = next((mount.get("volumeStatus") or {} for mount in mounts if mount["name"] == volume), {})
    # An identity without a repository cannot be pulled.
    _, _, digest = (status.get("image") or {}).get("imageRef", "").partition("@")
    return str(digest)


def _final_message(body: Json, name: str) -> str:
    container = _container(body, name)
    ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}
    message: str = ended.get("message", "")
    return message


def resolve(
    owner: LLMDeployment,
    templates: Sequence[Json],
    inspection: Inspection | None,
    inspection_problems: Sequence[Problem] = (),
    *,
    is_recorded: bool = True,
) -> Model:
    """The model's state.

    `templates`: pod templates of the recorded revisions, newest first. `inspection_problems`: why there is no
    inspection of the spec's model. Unless the spec's own revision `is_recorded`, incomplete reports are not used.
    """
    usable = (found for found in _recorded(owner, templates) if is_recorded or not _incomplete(owner, found))
    report = next(usable, None)
    if report is not None:
        return _resolved(report)
    if inspection is None:
        refused = next(iter(inspection_problems), None)
        return InspectionFailed(refused.reason, refused.message) if refused else Pending()
    if inspection.done:
        guessing, digests = draft.of(owner.spec), inspection.digests
        tagged = guessing is not None and guessing.tagged
        return _resolved(
            inspection.message, Pins(digests.model if owner.source.tagged else "", digests.draft if tagged else "")
        )
    return _failed(owner, inspection)


def recorded_pins(owner: LLMDeployment, templates: Sequence[Json]) -> Pins:
    """The revision of each of the spec's models in the newest record about it that has one."""
    records = [record for template in templates if (record := model_job.recorded(owner, template)) is not None]
    models = (found.revision for record in records if record.of_model and (found := _report(record.report)))
    drafts = (found.draft for record in records if record.of_draft and (found := _report(record.report)))
    return Pins(
        next((revision for revision in models if revision), ""),
        next((found.revision for found in drafts if found is not None and found.revision), ""),
    )


def _recorded(owner: LLMDeployment, templates: Sequence[Json]) -> Iterator[str]:
    """The reports about the spec's models."""
    records = (model_job.recorded(owner, template) for template in templates)
    return (record.report for record in records if record is not None and record.of_model and record.of_draft)


def _incomplete(owner: LLMDeployment, report: str) -> bool:
    """True if another inspection may find more: the digest of a tag, or what an older image did not report."""
    found = _report(report)
    if found is None:
        return False
    older = found.kv_elements_per_token > 0 and found.gpu is None
    # A Job may wait without end for a volume that replicas mount on their node.
    volume = owner.cache_claim or owner.source.scheme == "pvc"
    unresolved = found.unresolved or (found.draft is not None and found.draft.unresolved)
    return bool(unresolved) or (older and not volume)


def waiting(owner: LLMDeployment, claim: Json | None, events: Sequence[Json]) -> Model:
    """The state while the inspection cannot start: the cache volume claim, and the events about it."""
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
    message = next(
        (e.get("message", "") for e in events if e.get("reason") in ("ProvisioningFailed", "FailedBinding")), ""
    )
    if not message:
        return Pending()
    if "storageclass" in message and "not found" in message:
        wanted = owner.spec.cache.storage_class_name
        field = f"spec.cache.storageClassName: {wanted!r}" if wanted else f"PersistentVolumeClaim {name!r}"
        return InspectionFailed(
            "StorageClassNotFound", short(f"{field}: {message}; kubectl get storageclass lists the existing ones")
        )
    return InspectionFailed("ClaimPending", short(f"PersistentVolumeClaim {name!r} gets no volume: {message}"))


def _resolved(text: str, digests: Pins = Pins()) -> Resolved:  # noqa: B008 - frozen
    """`digests`: of inspected images, which are more certain than the registry's answers to their tags."""
    found = _report(text)
    if digests != Pins():
        found = _at_digest(found or UNKNOWN, digests.model)
        found = msgspec.structs.replace(found, draft=found.draft and _at_digest(found.draft, digests.draft))
        text = encode_inspection(found).decode()
    return Resolved(text, found) if found is not None else Resolved("", UNKNOWN)


def _at_digest(found: ModelReport, digest: str) -> ModelReport:
    return msgspec.structs.replace(found, revision=digest, unresolved="") if digest else found


def _failed(owner: LLMDeployment, inspection: Inspection) -> Model:
    found = _read(inspection.message)
    if isinstance(found, ModelFailure):
        secret = owner.spec.model.credentials_secret_ref
        given = f" (current Secret: {secret.name!r})" if secret and found.reason == "Unauthorized" else ""
        field, model = "spec.model", owner.spec.model.uri
        if found.draft and owner.spec.engine.speculation.model is not None:
            field, model = "spec.engine.speculation.model", owner.spec.engine.speculation.model.uri
        return InspectionFailed(found.reason, f"{field}: {model!r}: {found.message}{given}")
    problem = next(iter(inspection.pod.problems), None)
    return InspectionFailed(problem.reason, problem.message) if problem else Pending()


def _report(message: str) -> ModelReport | None:
    found = _read(message)
    return found if isinstance(found, ModelReport) else None


def _read(message: str) -> ModelReport | ModelFailure | None:
    try:
        return decode_inspection(message)
    except msgspec.DecodeError:
        return None


def problems(inspection: Inspection | None, failed: InspectionFailed) -> tuple[Problem, ...]:
    """The inspection's failure as a problem of its pod."""
    if inspection is None:
        return (Problem("", "", failed.reason, failed.message),)
    last = max((problem.last for problem in inspection.pod.problems), default=0.0)
    count = max((problem.count for problem in inspection.pod.problems), default=1)
    return (Problem(inspection.pod.name, model_job.CONTAINER, failed.reason, failed.message, count, last),)
