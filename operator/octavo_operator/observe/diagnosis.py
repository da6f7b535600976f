"""Diagnoses pods: a stable reason, and a message with the field, the cause and the next step.

The evidence is spread over container states, conditions, events and termination messages. The reasons are few and do
not change, so that people can look them up and programs can wait for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from octavo_operator.api.base import Json
from octavo_operator.api.model_source import ModelSource
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.api.times import seconds
from octavo_operator.observe import gpu_fit
from octavo_operator.observe.messages import creation_cause, final_message, pull_cause, short
from octavo_operator.resources import config, draft, source
from octavo_operator.resources.deployment import EXIT_SECONDS, SERVER

# All reasons, worst first: those that waiting does not resolve come before those that it may.
REASONS = (
    "ModelNotFound",
    "Unauthorized",
    "UnknownArchitecture",
    "InvalidModel",
    "DraftModelMismatch",
    "CacheNotWritable",
    "ClaimNotFound",
    "StorageClassNotFound",
    "ClaimPending",
    "ModelPullFailed",
    "ModelVolumeUnavailable",
    "ImagePullFailed",
    "SecretMissing",
    "ConfigMapMissing",
    "ContainerConfigInvalid",
    "ContainerStartFailed",
    "QuotaExceeded",
    "LimitRangeExceeded",
    "PodSecurityViolated",
    "PodsRefused",
    "DiskFull",
    "OOMKilled",
    "GpuFailed",
    "RankLost",
    "EngineCorrupt",
    "EngineStalled",
    "StartTooSlow",
    "Unresponsive",
    "CrashLoop",
    "RateLimited",
    "SourceUnreachable",
    "DownloadFailed",
    "Unschedulable",
    "SandboxFailed",
    "VolumeMountFailed",
    "Evicted",
    "PodFailed",
    "NodeNotReady",
    "NotReady",
)
# A pod with one of these reasons does not become ready without a change.
HOPELESS = frozenset(REASONS[: REASONS.index("CrashLoop") + 1])

# Exit codes of octavo-server with a meaning: the reason and the message.
_OWN_ENDS = {
    70: (
        "EngineStalled",
        "was restarted because its engine made no progress: {words}; spec.probes.livenessStallSeconds is {stall}",
    ),
    71: ("EngineCorrupt", "stopped after a failed integrity check, so that responses cannot mix: {words}"),
    72: (
        "GpuFailed",
        "restarts because its GPU failed: {words}; if the error recurs, drain the node",
    ),
    73: (
        "RankLost",
        "restarts because one of the processes that share the model died: {words}",
    ),
}
# Exit codes of a process that the kubelet stopped: 0 on SIGTERM, killed by SIGTERM, killed by SIGKILL.
_STOPPED = (0, 143, 137)
_SLACK_SECONDS = 10.0

_PULL = frozenset(
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
_CALM = frozenset({"", "ContainerCreating", "PodInitializing"})
_MISSING = re.compile(r'(?P<kind>secret|configmap) "(?P<name>[^"]+)" not found', re.IGNORECASE)
_KEYLESS = re.compile(r"couldn't find key (?P<key>\S+) in (?P<kind>Secret|ConfigMap) [^/\s]+/(?P<name>\S+)")
_EVENTS = {
    "FailedMount": "VolumeMountFailed",
    "FailedAttachVolume": "VolumeMountFailed",
    "FailedCreatePodSandBox": "SandboxFailed",
    "FailedScheduling": "Unschedulable",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a pod, seen `count` times, last at `last` Unix seconds (0: unknown).

    `pod` is empty when the problem is that there is no pod.
    """

    pod: str
    container: str
    reason: str
    message: str
    count: int = 1
    last: float = 0.0


def pod_problems(body: Json, owner: LLMDeployment, events: Sequence[Json]) -> tuple[Problem, ...]:
    """Problems of a pod that is not ready; `events`: those about it."""
    found = [*_of_conditions(body, owner), *_of_containers(body, owner, events)]
    status, pod = body.get("status", {}), body["metadata"]["name"]
    if status.get("phase") == "Failed":
        # Why its containers ended is that the pod was ended.
        found = [Problem(pod, "", *_ended(status), 1, _ended_at(status))]
    known = {problem.reason for problem in found}
    for event in events:
        reason, message = _event(event, owner)
        if reason and reason not in known and known.isdisjoint({"Unschedulable", "ModelVolumeUnavailable"}):
            known.add(reason)
            found.append(Problem(pod, "", reason, message, *_seen(events, event.get("reason", ""))))
    return tuple(found or _of_readiness(body))


def inspection_refusals(events: Sequence[Json]) -> tuple[Problem, ...]:
    """Why the API server refuses to create a Job's pod. Only the Job's events (newest first) show it."""
    refused = next((event for event in events if event.get("reason") == "FailedCreate"), None)
    if refused is None:
        return ()
    reason, message = _refused(creation_cause(refused.get("message", "")))
    return (Problem("", "", reason, message, *_seen(events, "FailedCreate")),)


def creation_problems(deployment: Json | None) -> tuple[Problem, ...]:
    """Why the API server refuses to create the Deployment's pods: quota, limits, admission."""
    for condition in (deployment or {}).get("status", {}).get("conditions", []):
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            last = seconds(condition.get("lastUpdateTime")) or 0.0
            return (Problem("", "", *_refused(creation_cause(condition.get("message", ""))), 1, last),)
    return ()


def _refused(cause: str) -> tuple[str, str]:
    if "exceeded quota" in cause:
        return "QuotaExceeded", short(
            f"the namespace's ResourceQuota has no room for another pod: {cause}; raise it, ask for less in "
            "spec.resources, or run fewer replicas"
        )
    if "violates PodSecurity" in cause:
        return "PodSecurityViolated", short(f"the namespace's Pod Security level rejects the pods: {cause}")
    if re.search(r"(maximum|minimum) \S+ usage per (Container|Pod)|limit to request ratio", cause):
        return "LimitRangeExceeded", short(
            f"spec.resources: the namespace's LimitRange rejects the pods: {cause}; change one of the two"
        )
    if "RuntimeClass" in cause:
        return "PodsRefused", short(f"spec.scheduling.runtimeClassName: {cause}; create it, or name another one")
    return "PodsRefused", short(f"the API server rejects the pods: {cause}")


def _of_conditions(body: Json, owner: LLMDeployment) -> Iterator[Problem]:
    for condition in body.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            last = seconds(condition.get("lastTransitionTime")) or 0.0
            found = _unschedulable(condition.get("message", ""), owner)
            yield Problem(body["metadata"]["name"], "", *found, 1, last)


def _of_containers(body: Json, owner: LLMDeployment, events: Sequence[Json]) -> Iterator[Problem]:
    status, pod = body.get("status", {}), body["metadata"]["name"]
    for container in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        name, state = container["name"], container.get("state", {})
        waiting, ended = state.get("waiting", {}), state.get("terminated", {})
        previous = container.get("lastState", {}).get("terminated", {})
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        restarts = container.get("restartCount", 0)
        last = seconds((ended or previous).get("finishedAt")) or 0.0
        if reason in _PULL:
            yield Problem(pod, name, *_pull(name, message, body, owner), *_seen(events, "Failed", "Failed to pull"))
        elif reason == "CrashLoopBackOff" or (not waiting and ended.get("exitCode", 0)) or _died(container):
            found = _crash(pod, name, ended or previous, owner, events)
            yield Problem(pod, name, *found, max(1, restarts), last)
        elif reason not in _CALM:
            found = _config(reason, message, owner)
            yield Problem(pod, name, *found, *_seen(events, "Failed", f"Error: {message}"))


def _died(container: Json) -> bool:
    """True if the container restarted after a failure and is not ready yet."""
    return "terminated" in container.get("lastState", {}) and "running" in container.get("state", {})


def _of_readiness(body: Json) -> Iterator[Problem]:
    """Problems of a server that was ready, still runs, and is not ready any more."""
    status, pod = body.get("status", {}), body["metadata"]["name"]
    conditions = {c["type"]: c for c in status.get("conditions", [])}
    server: Json = next((c for c in status.get("containerStatuses", []) if c["name"] == SERVER), {})
    started = seconds(server.get("state", {}).get("running", {}).get("startedAt"))
    since = seconds(conditions.get("Ready", {}).get("lastTransitionTime")) or 0.0
    if started is None or since <= started or not server.get("started"):
        return
    if server.get("ready"):
        node = body["spec"].get("nodeName", "its node")
        yield Problem(pod, "", "NodeNotReady", _silent_node(node), 1, since)
    else:
        text = f"the server runs but no longer responds to /readyz; see kubectl logs {pod} -c {SERVER}"
        yield Problem(pod, SERVER, "NotReady", text, 1, since)


def _silent_node(node: str) -> str:
    return (
        f"{node} no longer reports, so it is unknown whether the pod still serves; see kubectl describe node "
        f"{node}: Kubernetes replaces the pod if the node does not return"
    )


def _pull(name: str, message: str, body: Json, owner: LLMDeployment) -> tuple[str, str]:
    images = {c["name"]: c["image"] for c in body["spec"].get("initContainers", []) + body["spec"]["containers"]}
    cause = short(pull_cause(message), 400)
    hint = f"check the reference, the registry, and imagePullSecrets of service account {owner.name}"
    # The kubelet reports a missing image volume as the container's pull error; only the message tells which image.
    for field, uri, model in _models(owner):
        if model.scheme == "oci" and model.reference in message and images.get(name) != model.reference:
            return "ModelPullFailed", short(f"{field}: {uri!r} cannot be pulled as an image volume: {cause}; {hint}")
    field = "spec.engine.image" if owner.spec.engine.image else "the installation's engine image"
    return "ImagePullFailed", short(f"{field}: {images.get(name, '')!r} cannot be pulled: {cause}; {hint}")


def _models(owner: LLMDeployment) -> list[tuple[str, str, ModelSource]]:
    """The field, URI and source of the model, and of the draft model if there is one."""
    models = [("spec.model.uri", owner.spec.model.uri, owner.source)]
    guessing, found = owner.spec.engine.speculation.model, draft.of(owner.spec)
    if guessing is not None and found is not None:
        models.append(("spec.engine.speculation.model.uri", guessing.uri, found))
    return models


def _crash(pod: str, name: str, ended: Json, owner: LLMDeployment, events: Sequence[Json]) -> tuple[str, str]:
    code, words = ended.get("exitCode"), final_message(ended.get("message", ""))
    logs = f"see kubectl logs {pod} -c {name} --previous"
    if ended.get("reason") == "OOMKilled":
        return "OOMKilled", short(_memory(name, owner))
    if "No space left on device" in words:
        return "DiskFull", short(f"container {name} ran out of disk space: {words}; {logs}")
    if name in {source.PREFETCH, draft.PREFETCH}:
        field, uri, _ = _models(owner)[name == draft.PREFETCH]
        return "ModelPullFailed", short(
            f"{field}: {uri!r} cannot be downloaded: {words or f'exit code {code}; {logs}'}"
        )
    if code in _OWN_ENDS:
        reason, meaning = _OWN_ENDS[code]
        stall = owner.spec.probes.liveness_stall_seconds
        return reason, short(f"container {name} {meaning.format(words=words, stall=stall)}; {logs}")
    if code in _STOPPED and (probe := _killed_by(ended, owner, events)):
        return _killed(probe, name, owner, logs)
    reported = f": {words}" if words else " without a message"
    return "CrashLoop", short(f"container {name} ended with exit code {code}{reported}; {logs}")


def _memory(name: str, owner: LLMDeployment) -> str:
    if name != SERVER:
        return f"container {name} exceeded its memory limit and was killed"
    return (
        f"spec.resources.memory: {owner.spec.resources.memory} is less than container {name} used, and it was "
        "killed; raise it, or lower spec.engine.kv.memory"
    )


def _killed_by(ended: Json, owner: LLMDeployment, events: Sequence[Json]) -> str:
    """The probe whose failure made the kubelet stop the container; empty when none did.

    Events show it unless the kubelet dropped them: it limits the events of a pod, and failed probes cause many.
    """
    since = seconds(ended.get("startedAt")) or 0.0
    for event in events:
        found = re.search(r"failed (startup|liveness) probe", event.get("message", ""))
        if event.get("reason") == "Killing" and found and _time(event) >= since:
            return found.group(1)
    lived = (seconds(ended.get("finishedAt")) or 0.0) - since
    limit = owner.spec.probes.startup_timeout_seconds
    grace = owner.spec.drain.propagation_seconds + owner.spec.drain.timeout_seconds + EXIT_SECONDS
    return "startup" if since and limit - _SLACK_SECONDS <= lived <= limit + grace + _SLACK_SECONDS else ""


def _killed(probe: str, name: str, owner: LLMDeployment, logs: str) -> tuple[str, str]:
    if probe == "startup":
        limit = owner.spec.probes.startup_timeout_seconds
        return "StartTooSlow", short(
            f"spec.probes.startupTimeoutSeconds: container {name} was not ready within {limit} s and was stopped; "
            f"raise it, or {logs}"
        )
    return "Unresponsive", short(f"container {name} failed its liveness probe and was stopped; {logs}")


def _config(reason: str, message: str, owner: LLMDeployment) -> tuple[str, str]:
    if missing := _MISSING.search(message):
        kind = _kind(missing["kind"])
        field, key = _reference(kind, missing["name"], None, owner)
        named = f" with the key {key!r}" if key else ""
        return f"{kind}Missing", short(
            f"{field}{kind} {missing['name']!r} is not in namespace {owner.namespace}; create it{named}"
        )
    if keyless := _KEYLESS.search(message):
        kind = _kind(keyless["kind"])
        field, _ = _reference(kind, keyless["name"], keyless["key"], owner)
        return f"{kind}Missing", short(f"{field}{kind} {keyless['name']!r} has no key {keyless['key']!r}; add it")
    if reason == "CreateContainerConfigError":
        return "ContainerConfigInvalid", short(f"the container cannot be configured: {message}")
    return "ContainerStartFailed", short(f"the container cannot be started ({reason}): {message}")


def _kind(word: str) -> str:
    return "Secret" if word.lower() == "secret" else "ConfigMap"


def _reference(kind: str, name: str, key: str | None, owner: LLMDeployment) -> tuple[str, str]:
    """The field that references an object, as the start of a sentence, and the missing key; empty when not ours."""
    credentials = owner.spec.model.credentials_secret_ref
    wanted = source.CREDENTIALS.get(owner.source.scheme)
    if wanted and kind == "Secret" and credentials is not None and credentials.name == name:
        return "spec.model.credentialsSecretRef.name: ", key or wanted[0].key
    for variable in owner.spec.engine.env:
        origin = variable.value_from
        if origin is None:
            continue
        reference = origin.secret_key_ref if kind == "Secret" else origin.config_map_key_ref
        if reference is not None and reference.name == name and key in (None, reference.key):
            field = "secretKeyRef" if kind == "Secret" else "configMapKeyRef"
            return f"spec.engine.env[{variable.name}].valueFrom.{field}: ", reference.key
    return "", ""


def _ended(status: Json) -> tuple[str, str]:
    reason, message = status.get("reason") or "Failed", status.get("message") or "the pod ended"
    if reason == "Evicted" and re.search(r"EmptyDir|ephemeral[- ](local )?storage", message):
        return "DiskFull", short(f"the pod was evicted because it filled its disk: {message}")
    if reason == "Evicted":
        return "Evicted", short(f"the node evicted the pod: {message}")
    return "PodFailed", short(f"the pod ended ({reason}): {message}")


def _ended_at(status: Json) -> float:
    ends = [c.get("state", {}).get("terminated", {}).get("finishedAt") for c in status.get("containerStatuses", [])]
    return max((seconds(end) or 0.0 for end in ends), default=0.0)


def _event(event: Json, owner: LLMDeployment) -> tuple[str, str]:
    """Reason and message of an event whose cause appears in no status; empty for other events."""
    reason, message = _EVENTS.get(event.get("reason", ""), ""), event.get("message", "")
    if reason == "Unschedulable":
        return _unschedulable(message, owner)
    if reason == "VolumeMountFailed" and (claim := _claim(message, owner)):
        return "ModelVolumeUnavailable", claim
    if reason == "VolumeMountFailed" and f'"{config.TEMPLATE}"' in message and (missing := _template(message, owner)):
        return "ConfigMapMissing", missing
    if reason == "SandboxFailed":
        return reason, short(f"the node cannot start the pod's sandbox: {message}")
    return reason, short(f"a volume cannot be mounted: {message}")


def _template(message: str, owner: LLMDeployment) -> str:
    """The message for a chat template that cannot be mounted; empty if the spec has none, or for another cause."""
    reference = owner.spec.model.chat_template_config_map_ref
    if reference is None:
        return ""
    found = f"spec.model.chatTemplateConfigMapRef: ConfigMap {reference.name!r}"
    if _MISSING.search(message):
        return short(f"{found} is not in namespace {owner.namespace}; create it with the key {reference.key!r}")
    return short(f"{found} has no key {reference.key!r}; add it") if "non-existent config key" in message else ""


def _unschedulable(message: str, owner: LLMDeployment) -> tuple[str, str]:
    if claim := _claim(message, owner):
        return "ModelVolumeUnavailable", claim
    resources = owner.spec.resources
    requested = [f"{resources.cpu} CPUs", f"{resources.memory} memory"]
    if resources.gpu.count:
        requested.append(gpu_fit.request_text(resources.gpu))
    return "Unschedulable", short(
        f"no node fits a pod that requests {', '.join(requested)} (spec.resources): {message}"
    )


def _claim(message: str, owner: LLMDeployment) -> str:
    """What to do about the claim of a model that a message is about; empty if it is about none."""
    for field, uri, model in _models(owner):
        claim = model.reference
        if model.scheme == "pvc" and f'"{claim}"' in message:
            return short(
                f"{field}: {uri!r}: {message}; create PersistentVolumeClaim {claim!r} in namespace "
                f"{owner.namespace}, or see kubectl describe pvc {claim}"
            )
    return ""


def _seen(events: Sequence[Json], reason: str, start: str = "") -> tuple[int, float]:
    """Count and last time of the events of a reason; 1 and 0 without events."""
    same = [e for e in events if e.get("reason") == reason and e.get("message", "").startswith(start)]
    if not same:
        return 1, 0.0
    return sum(e.get("count") or e.get("series", {}).get("count") or 1 for e in same), max(map(_time, same))


def _time(event: Json) -> float:
    series = event.get("series") or {}
    time = event.get("lastTimestamp") or series.get("lastObservedTime") or event.get("eventTime")
    return seconds(time) or 0.0
