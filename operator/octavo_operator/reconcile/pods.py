"""A pod as the plan sees it, and what it reports as wrong, in words a person can act on."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from octavo_operator.api.blocks import Json
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.builders import source
from octavo_operator.builders.common import LABEL_REVISION
from octavo_operator.builders.deployment import SERVER, config_name
from octavo_protocol import names

_PULL_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_WAITING_WITHOUT_TROUBLE = frozenset({"", "ContainerCreating", "PodInitializing"})
# Events worth showing that no container status repeats.
_EVENT_REASONS = frozenset({"FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedScheduling"})
MESSAGE_LIMIT = 700


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a pod. `count` is how often, `last` Unix seconds (0 when not known)."""

    pod: str
    container: str
    reason: str
    message: str
    count: int = 1
    last: float = 0.0


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of the deployment. Times are Unix seconds.

    `loaded`: the server container has started, so the weights are there. `marked`: since when it is chosen to go.
    """

    name: str
    revision: str
    config: str
    created: float
    ip: str = ""
    ready: bool = False
    loaded: bool = False
    terminating: bool = False
    finished: bool = False
    scheduled: bool = False
    restarts: int = 0
    marked: float | None = None
    problems: tuple[Problem, ...] = field(default=())

    @property
    def active(self) -> bool:
        """Whether it counts as a replica: neither on its way out nor ended."""
        return not self.terminating and not self.finished


def seconds(time: str | None) -> float | None:
    """Unix seconds of an RFC 3339 time."""
    return datetime.fromisoformat(time).timestamp() if time else None


def rfc3339(now: float) -> str:
    """A Unix time as API objects spell it, in whole seconds."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def observe_pod(body: Json, owner: LLMDeployment, events: list[Json]) -> Pod:
    """The pod in an API object; `events` are warnings about it."""
    meta, status = body["metadata"], body.get("status", {})
    annotations = meta.get("annotations", {})
    conditions = {c["type"]: c for c in status.get("conditions", [])}
    containers = status.get("containerStatuses", [])
    server: Json = next((c for c in containers if c["name"] == SERVER), {})
    running = server.get("state", {}).get("running")
    ready = conditions.get("Ready", {}).get("status") == "True"
    return Pod(
        name=meta["name"],
        revision=meta.get("labels", {}).get(LABEL_REVISION, ""),
        config=config_name(body),
        created=seconds(meta["creationTimestamp"]) or 0.0,
        ip=status.get("podIP", ""),
        ready=ready,
        loaded=bool(running or server.get("restartCount") or server.get("lastState")),
        terminating="deletionTimestamp" in meta,
        finished=status.get("phase") in ("Succeeded", "Failed"),
        scheduled=conditions.get("PodScheduled", {}).get("status") == "True",
        restarts=server.get("restartCount", 0),
        marked=seconds(annotations.get(names.ANNOTATION_DRAINING)),
        problems=() if ready else tuple(_problems(body, owner, events)),
    )


def _problems(body: Json, owner: LLMDeployment, events: list[Json]) -> list[Problem]:
    status, pod = body.get("status", {}), body["metadata"]["name"]
    found: list[Problem] = []
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            last = seconds(condition.get("lastTransitionTime")) or 0.0
            found.append(Problem(pod, "", *_unschedulable(condition.get("message", ""), owner), 1, last))
    for container in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        found += _container_problems(pod, container, body, owner)
    if status.get("phase") == "Failed":
        reason = status.get("reason", "PodFailed")
        found.append(Problem(pod, "", reason, _short(status.get("message", "the pod ended"))))
    known = {problem.reason for problem in found}
    for event in events:
        reason = event.get("reason", "")
        scheduling = reason == "FailedScheduling" and "Unschedulable" in known
        if reason in _EVENT_REASONS and reason not in known and not scheduling:
            known.add(reason)
            last = seconds(event.get("lastTimestamp") or event.get("eventTime")) or 0.0
            count = event.get("count") or event.get("series", {}).get("count") or 1
            found.append(Problem(pod, "", reason, _volume(event.get("message", ""), owner), count, last))
    return found


def _container_problems(pod: str, container: Json, body: Json, owner: LLMDeployment) -> list[Problem]:
    name, state = container["name"], container.get("state", {})
    waiting, ended = state.get("waiting", {}), state.get("terminated", {})
    previous = container.get("lastState", {}).get("terminated", {})
    restarts = container.get("restartCount", 0)
    last = seconds((ended or previous).get("finishedAt")) or 0.0
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _PULL_REASONS:
        return [Problem(pod, name, *_pull(name, reason, message, body, owner), max(1, restarts), last)]
    if reason == "CrashLoopBackOff" or (not waiting and ended.get("exitCode", 0)) or _died_again(container):
        return [Problem(pod, name, *_crash(name, ended or previous, restarts, owner), max(1, restarts), last)]
    if waiting and reason not in _WAITING_WITHOUT_TROUBLE:
        return [Problem(pod, name, reason, _config(message, owner), max(1, restarts), last)]
    return []


def _died_again(container: Json) -> bool:
    """Running again after a failure, and not ready yet."""
    previous = container.get("lastState", {}).get("terminated", {})
    return bool(previous.get("exitCode")) and "running" in container.get("state", {})


def _pull(name: str, reason: str, message: str, body: Json, owner: LLMDeployment) -> tuple[str, str]:
    images = {c["name"]: c["image"] for c in body["spec"].get("initContainers", []) + body["spec"]["containers"]}
    model = source.parse(owner.spec.model)
    # The kubelet reports a missing image volume as the container's pull error; only the message tells which image.
    if model.scheme == "oci" and model.reference in message and images.get(name) != model.reference:
        return "ModelPullFailed", _short(
            f"spec.model.uri: {owner.spec.model.uri!r} cannot be pulled as an image volume; check the reference, and "
            f"that the nodes reach its registry: {message}"
        )
    field = "spec.engine.image" if owner.spec.engine.image else "the installation's engine image"
    return "ImagePullFailed", _short(
        f"{field}: {images.get(name, '')!r} cannot be pulled ({reason}); check the reference, and that the nodes reach "
        f"its registry: {message}"
    )


def _crash(name: str, ended: Json, restarts: int, owner: LLMDeployment) -> tuple[str, str]:
    code, last_words = ended.get("exitCode"), ended.get("message", "").strip()
    said = f"; its last words: {last_words[-MESSAGE_LIMIT + 300 :]}" if last_words else ""
    if ended.get("reason") == "OOMKilled":
        return "OOMKilled", (
            f"container {name} needed more than spec.resources.memory ({owner.spec.resources.memory}) and was killed "
            f"(restarts: {restarts}); raise it, or lower spec.engine.kv.memory{said}"
        )
    if name == source.PREFETCH:
        return "ModelPullFailed", _short(
            f"spec.model.uri: {owner.spec.model.uri!r} cannot be downloaded (exit code {code}, restarts: "
            f"{restarts}){said}"
        )
    return "CrashLoop", _short(f"container {name} ended with exit code {code} (restarts: {restarts}){said}")


def _config(message: str, owner: LLMDeployment) -> str:
    secret = owner.spec.model.credentials_secret_ref
    if secret is not None and f'secret "{secret.name}"' in message:
        return _short(f"spec.model.credentialsSecretRef.name: {message}; create it with a key `token`")
    return _short(message)


def _volume(message: str, owner: LLMDeployment) -> str:
    return _short(f"spec.model.uri: {owner.spec.model.uri!r}: {message}" if _about_claim(message, owner) else message)


def _about_claim(message: str, owner: LLMDeployment) -> bool:
    model = source.parse(owner.spec.model)
    return model.scheme == "pvc" and f'"{model.reference}"' in message


def _unschedulable(message: str, owner: LLMDeployment) -> tuple[str, str]:
    if _about_claim(message, owner):
        return "ModelVolumeUnavailable", _volume(message, owner)
    resources = owner.spec.resources
    asked = [f"{resources.cpu} CPUs", f"{resources.memory} memory"]
    if resources.gpu.count:
        asked.append(f"{resources.gpu.count} {resources.gpu.resource_name}")
    return "Unschedulable", _short(f"no node takes a pod that asks for {', '.join(asked)}: {message}")


def _short(message: str) -> str:
    return message if len(message) <= MESSAGE_LIMIT else f"{message[: MESSAGE_LIMIT - 1]}…"
