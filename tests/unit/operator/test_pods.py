"""What pods report as wrong, in words that name the field to change: from statuses recorded on a real node."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.api.times import rfc3339
from octavo_operator.observe.diagnosis import HOPELESS, REASONS, creation_problems, inspection_refusals
from octavo_operator.observe.messages import LIMIT, final_message, short
from octavo_operator.observe.pods import Problem, observe_pod

Json = dict[str, Any]
Make = Callable[..., LLMDeployment]
TIME = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:05:00Z"
FOLDER = Path(__file__).parent / "recorded"
PODS: dict[str, Json] = json.loads((FOLDER / "pods.json").read_text())
DEPLOYMENTS: dict[str, Json] = json.loads((FOLDER / "deployments.json").read_text())

# Name of the recording: reason, and what the message must hold: the field, what was found, the next step.
EXPECTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "image": (
        "ImagePullFailed",
        (
            "spec.engine.image: 'localhost:5000/no-such-server:1' cannot be pulled: ",
            "not found; ",
            "check the reference",
        ),
    ),
    "model-image": (
        "ModelPullFailed",
        (
            "spec.model.uri: 'oci://localhost:5000/models/no-such:v1' cannot be pulled",
            "not found; ",
            "imagePullSecrets",
        ),
    ),
    "denied": (
        "ModelPullFailed",
        ("spec.model.uri: 'hf://denied/x' cannot be downloaded: ", "refuses access (401)", "credentialsSecretRef"),
    ),
    "gated": ("ModelPullFailed", ("spec.model.uri: 'hf://gated/x'", "refuses access (403)", "credentialsSecretRef")),
    "no-secret": (
        "SecretMissing",
        (
            "spec.model.credentialsSecretRef.name: Secret 'missing' is not in namespace ",
            "create it with the key 'token'",
        ),
    ),
    "no-env-secret": (
        "SecretMissing",
        ("spec.engine.env[A].valueFrom.secretKeyRef: Secret 'nope'", "with the key 'k'"),
    ),
    "no-env-key": (
        "SecretMissing",
        ("spec.engine.env[A].valueFrom.secretKeyRef: Secret 'hub' has no key 'nokey'; add it",),
    ),
    "no-env-map": ("ConfigMapMissing", ("spec.engine.env[A].valueFrom.configMapKeyRef: ConfigMap 'nope'", "create it")),
    "no-claim": (
        "ModelVolumeUnavailable",
        (
            "spec.model.uri: 'pvc://nope/x'",
            'persistentvolumeclaim "nope" not found',
            "create PersistentVolumeClaim 'nope'",
        ),
    ),
    "too-big": ("Unschedulable", ("64 CPUs", "(spec.resources)", "1 Insufficient cpu")),
    "oom": ("OOMKilled", ("spec.resources.memory: 24Mi", "raise it, or lower spec.engine.kv.memory")),
    "tight": ("CrashLoop", ("its weights take 0.09 GiB of memory, 0.03 GiB are available", "raise its memory limit")),
    "crash": (
        "CrashLoop",
        ("exit code 2: octavo-server: --no-such-flag: there is no such setting", "kubectl logs crash-"),
    ),
    "arch": ("CrashLoop", ("exit code 1: /model: tokenizer.json is missing beside the safetensors files",)),
    "damaged": ("CrashLoop", ("exit code 1: /model/model.gguf: damaged GGUF file",)),
    "full-disk": ("DiskFull", ("No space left on device", "kubectl logs fill-")),
    "evicted": ("DiskFull", ('Usage of EmptyDir volume "tmp" exceeds the limit "2Gi"',)),
    "slow": ("StartTooSlow", ("spec.probes.startupTimeoutSeconds", "not ready within 30 s", "raise it")),
    "sandbox": ("SandboxFailed", ("the pod's sandbox", 'no runtime for "nope" is configured')),
}


def body(**status: Any) -> Json:
    return {
        "metadata": {"name": "tiny-1", "uid": "p1", "creationTimestamp": TIME, "labels": {"octavo.dev/revision": "r"}},
        "spec": {
            "nodeName": "node-7",
            "initContainers": [{"name": "prefetch", "image": "server:1"}],
            "containers": [{"name": "server", "image": "server:1"}],
            "volumes": [{"name": "config", "configMap": {"name": "tiny-config-1"}}],
        },
        "status": {"conditions": [{"type": "PodScheduled", "status": "True"}], **status},
    }


def container(name: str = "server", **fields: Any) -> Json:
    return {"name": name, "restartCount": 0, "state": {}, **fields}


def waiting(reason: str, message: str = "") -> Json:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def ended(code: int, message: str = "", reason: str = "Error") -> Json:
    return {"terminated": {"exitCode": code, "message": message, "reason": reason, "finishedAt": TIME}}


def unready(since: str, *, server_ready: bool) -> Json:
    """A server that started at TIME, in a pod that is not ready since `since`."""
    state = {"running": {"startedAt": TIME}}
    conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": since}]
    return body(conditions=conditions, containerStatuses=[container(started=True, ready=server_ready, state=state)])


@pytest.fixture
def problem(make_owner: Make) -> Callable[..., Problem]:
    def only(pod: Json, spec: Json | None = None, events: list[Json] | None = None) -> Problem:
        (found,) = observe_pod(pod, make_owner(spec), events or []).problems
        return found

    return only


def recorded(name: str, make_owner: Make) -> Problem:
    record = PODS[name]
    (found,) = observe_pod(record["pod"], make_owner(record["spec"]), record["events"]).problems
    return found


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_failure_is_explained(name: str, make_owner: Make) -> None:
    found = recorded(name, make_owner)
    reason, parts = EXPECTED[name]
    assert found.reason == reason
    for part in parts:
        assert part in found.message
    assert found.reason in REASONS


def test_every_recording_is_expected() -> None:
    assert set(PODS) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_messages_are_one_bounded_line_without_a_traceback(name: str, make_owner: Make) -> None:
    message = recorded(name, make_owner).message
    assert len(message) <= LIMIT
    assert message.isprintable()
    assert "Traceback" not in message
    assert 'File "' not in message


@pytest.mark.parametrize(
    ("name", "count", "last"),
    [
        ("crash", 3, "2026-11-21T08:57:26Z"),
        ("slow", 1, "2026-11-21T08:57:28Z"),
        ("evicted", 1, "2026-11-21T08:57:03Z"),
    ],
)
def test_restarts_count_and_the_last_end_is_the_time(name: str, count: int, last: str, make_owner: Make) -> None:
    found = recorded(name, make_owner)
    assert (found.count, rfc3339(found.last)) == (count, last)


@pytest.mark.parametrize("name", ["image", "model-image", "no-env-map", "sandbox"])
def test_without_restarts_the_events_count(name: str, make_owner: Make) -> None:
    found = recorded(name, make_owner)
    assert found.count > 1
    assert (
        rfc3339(found.last) == max(event.get("lastTimestamp", "") for event in PODS[name]["events"])[:20] or found.last
    )


def test_waiting_for_the_next_pull_says_what_the_pull_said(problem: Callable[..., Problem]) -> None:
    cause = "rpc error: code = NotFound desc = registry.local/models/tiny:1: not found"
    pulling = problem(body(containerStatuses=[container(**waiting("ErrImagePull", cause))]))
    back_off = f'Back-off pulling image "registry.local/models/tiny:1": ErrImagePull: {cause}'
    backing_off = problem(body(containerStatuses=[container(**waiting("ImagePullBackOff", back_off))]))
    assert pulling.reason == "ModelPullFailed"
    assert pulling == backing_off


def with_draft(uri: str) -> Json:
    speculation = {"method": "draft", "model": {"uri": uri}}
    return {"model": {"uri": "pvc://weights/large"}, "engine": {"speculation": speculation}}


@pytest.mark.parametrize(
    ("uri", "pod", "events", "reason", "says"),
    [
        (
            "hf://org/small",
            {"initContainerStatuses": [container("prefetch-draft", state=ended(1, "octavo: refuses access (401)"))]},
            [],
            "ModelPullFailed",
            "spec.engine.speculation.model.uri: 'hf://org/small' cannot be downloaded: octavo: refuses access (401)",
        ),
        (
            "oci://registry.local/small:1",
            {"containerStatuses": [container(**waiting("ErrImagePull", "registry.local/small:1: not found"))]},
            [],
            "ModelPullFailed",
            "spec.engine.speculation.model.uri: 'oci://registry.local/small:1' cannot be pulled as an image volume: ",
        ),
        (
            "pvc://nope/small",
            {},
            [{"reason": "FailedScheduling", "message": 'persistentvolumeclaim "nope" not found'}],
            "ModelVolumeUnavailable",
            "spec.engine.speculation.model.uri: 'pvc://nope/small': persistentvolumeclaim \"nope\" not found; create",
        ),
    ],
)
def test_a_failure_of_the_draft_model_names_its_field(
    problem: Callable[..., Problem], uri: str, pod: Json, events: list[Json], reason: str, says: str
) -> None:
    found = problem(body(**pod), with_draft(uri), events)
    assert found.reason == reason
    assert found.message.startswith(says)


def test_sandboxes_fail_with_one_message(problem: Callable[..., Problem]) -> None:
    def said(digit: str) -> str:
        event = {"reason": "FailedCreatePodSandBox", "message": f'sandbox "{digit * 64}": no runtime'}
        return problem(body(), events=[event]).message

    assert said("a") == said("b")


@pytest.mark.parametrize(
    ("name", "reason", "says"),
    [
        ("quota", "QuotaExceeded", "ResourceQuota has no room for another pod: a pod is forbidden: exceeded quota: x"),
        ("limits", "LimitRangeExceeded", "maximum memory usage per Container is 100Mi, but limit is 1Gi"),
        (
            "no-rtc",
            "PodsRefused",
            'spec.scheduling.runtimeClassName: a pod is forbidden: pod rejected: RuntimeClass "no-',
        ),
    ],
)
def test_pods_that_are_not_created_at_all(name: str, reason: str, says: str) -> None:
    (found,) = creation_problems(DEPLOYMENTS[name])
    assert (found.pod, found.reason) == ("", reason)
    assert says in found.message


def test_pod_security_and_other_refusals() -> None:
    def reason(message: str) -> str:
        condition = {"type": "ReplicaFailure", "status": "True", "message": message}
        (found,) = creation_problems({"status": {"conditions": [condition]}})
        return found.reason

    assert reason('pods "a-1" is forbidden: violates PodSecurity "restricted:latest": …') == "PodSecurityViolated"
    assert reason('admission webhook "x" denied the request') == "PodsRefused"
    assert creation_problems({"status": {"conditions": [{"type": "ReplicaFailure", "status": "False"}]}}) == ()
    assert creation_problems(None) == ()


def test_a_serving_pod(make_owner: Make) -> None:
    pod = observe_pod(
        body(
            conditions=[{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
            podIP="10.0.0.9",
            containerStatuses=[container(state={"running": {"startedAt": TIME}}, lastState=ended(1))],
        ),
        make_owner(),
        [],
    )
    assert (pod.ready, pod.loaded, pod.active, pod.scheduled, pod.ip) == (True, True, True, True, "10.0.0.9")
    assert (pod.revision, pod.config, pod.problems) == ("r", "tiny-config-1", ())


def test_starting_is_no_problem(make_owner: Make) -> None:
    for reason in ("ContainerCreating", "PodInitializing"):
        pod = observe_pod(body(containerStatuses=[container(**waiting(reason))]), make_owner(), [])
        assert (pod.problems, pod.loaded) == ((), False)
    started = observe_pod(unready("2025-12-31T23:59:50Z", server_ready=False), make_owner(), [])
    assert (started.problems, started.loaded) == ((), True)


def test_readiness_lost(problem: Callable[..., Problem]) -> None:
    found = problem(unready(LATER, server_ready=False))
    assert (found.reason, found.container, rfc3339(found.last)) == ("NotReady", "server", LATER)


def test_a_node_that_does_not_report(problem: Callable[..., Problem]) -> None:
    """The node controller takes the pod's readiness away and knows nothing of its containers."""
    found = problem(unready(LATER, server_ready=True))
    assert found.reason == "NodeNotReady"
    assert "kubectl describe node node-7" in found.message


@pytest.mark.parametrize(
    ("code", "reason", "event", "expected"),
    [
        (70, "Error", None, "EngineStalled"),
        (71, "Error", None, "EngineCorrupt"),
        (72, "Error", None, "GpuFailed"),
        (73, "Error", None, "RankLost"),
        (0, "Completed", None, "CrashLoop"),
        (137, "Error", "liveness", "Unresponsive"),
        (143, "Error", "startup", "StartTooSlow"),
        (1, "Error", "startup", "CrashLoop"),
        (137, "OOMKilled", "startup", "OOMKilled"),
    ],
)
def test_how_a_server_ended(
    code: int, reason: str, event: str | None, expected: str, problem: Callable[..., Problem]
) -> None:
    message = f"Container server failed {event} probe, will be restarted"
    events = [{"reason": "Killing", "message": message, "lastTimestamp": LATER}] if event else []
    state = {"state": {"running": {"startedAt": TIME}}, "restartCount": 1}
    found = problem(body(containerStatuses=[container(lastState=ended(code, reason=reason), **state)]), events=events)
    assert found.reason == expected
    assert found.reason in HOPELESS


def test_a_kill_of_an_earlier_life_does_not_count(problem: Callable[..., Problem]) -> None:
    event = {"reason": "Killing", "message": "Container server failed startup probe", "lastTimestamp": TIME}
    last = {"terminated": {"exitCode": 137, "startedAt": LATER, "finishedAt": LATER}}
    state = {"state": {"running": {"startedAt": LATER}}, "restartCount": 2}
    assert problem(body(containerStatuses=[container(lastState=last, **state)]), events=[event]).reason == "CrashLoop"


def test_a_server_image_of_the_installation(problem: Callable[..., Problem]) -> None:
    pod = body(containerStatuses=[container(**waiting("ImagePullBackOff", 'Back-off pulling image "server:1"'))])
    ours = problem(pod)
    assert (ours.reason, ours.message.split(":")[0]) == ("ImagePullFailed", "the installation's engine image")


def test_a_claim_that_cannot_be_mounted(problem: Callable[..., Problem]) -> None:
    event = {"reason": "FailedMount", "message": 'persistentvolumeclaim "w" lost', "count": 3, "lastTimestamp": TIME}
    found = problem(body(), {"model": {"uri": "pvc://w/x"}}, [event, event])
    assert (found.reason, found.count, rfc3339(found.last)) == ("ModelVolumeUnavailable", 6, TIME)
    other = problem(body(), None, [{**event, "message": 'configmap "c" not found'}])
    assert (other.reason, other.count) == ("VolumeMountFailed", 3)


@pytest.mark.parametrize(
    ("cause", "fix"),
    [
        ('configmap "templates" not found', "is not in namespace models; create it with the key 'short'"),
        ("configmap references non-existent config key: short", "has no key 'short'; add it"),
    ],
)
def test_a_chat_template_that_is_missing(problem: Callable[..., Problem], cause: str, fix: str) -> None:
    event = {"reason": "FailedMount", "message": f'MountVolume.SetUp failed for volume "chat-template" : {cause}'}
    spec = {"model": {"uri": "pvc://w/x", "chatTemplateConfigMapRef": {"name": "templates", "key": "short"}}}
    found = problem(body(), spec, [event])
    assert found.reason == "ConfigMapMissing"
    assert found.message == f"spec.model.chatTemplateConfigMapRef: ConfigMap 'templates' {fix}"


def test_a_gpu_that_no_node_has(problem: Callable[..., Problem]) -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: 3 Insufficient nvidia.com/gpu."}
    found = problem(body(conditions=[condition]), {"resources": {"gpu": {"count": 1}}})
    assert found.reason == "Unschedulable"
    assert "4 CPUs, 16Gi memory, 1 nvidia.com/gpu (spec.resources): 0/3 nodes" in found.message


def test_a_gpu_that_failed_says_the_servers_sentence(problem: Callable[..., Problem]) -> None:
    said = "the GPU failed: CUDA error: an illegal memory access was encountered"
    last = {"terminated": {"exitCode": 72, "finishedAt": TIME, "startedAt": TIME, "message": said}}
    state = {"state": {"running": {"startedAt": LATER}}, "restartCount": 1}
    found = problem(body(containerStatuses=[container(lastState=last, **state)]), {"resources": {"gpu": {"count": 1}}})
    assert (found.reason, said in found.message, "drain the node" in found.message) == ("GpuFailed", True, True)


def test_a_rank_that_died_says_the_servers_sentence(problem: Callable[..., Problem]) -> None:
    said = "rank 1 of 2 died: it was killed by signal 9"
    last = {"terminated": {"exitCode": 73, "finishedAt": TIME, "startedAt": TIME, "message": said}}
    state = {"state": {"running": {"startedAt": LATER}}, "restartCount": 1}
    found = problem(body(containerStatuses=[container(lastState=last, **state)]))
    assert found.reason == "RankLost"
    assert f"processes that share the model died: {said}; see kubectl" in found.message


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("CreateContainerConfigError", "ContainerConfigInvalid"), ("RunContainerError", "ContainerStartFailed")],
)
def test_a_container_that_cannot_be_made(reason: str, expected: str, problem: Callable[..., Problem]) -> None:
    found = problem(body(containerStatuses=[container(**waiting(reason, "no such executable"))]))
    assert (found.reason, "no such executable" in found.message) == (expected, True)


@pytest.mark.parametrize(
    ("reason", "expected"), [("Evicted", "Evicted"), ("OutOfcpu", "PodFailed"), ("NodeShutdown", "PodFailed")]
)
def test_a_pod_that_was_ended(reason: str, expected: str, problem: Callable[..., Problem]) -> None:
    found = problem(body(phase="Failed", reason=reason, message="the node was low on memory"))
    assert (found.reason, "the node was low on memory" in found.message) == (expected, True)


def test_last_words_are_the_end_without_frames() -> None:
    log = (
        'x\nTraceback (most recent call last):\n  File "a.py", line 1\n    run()\nValueError: no\n{"message": "over"}\n'
    )
    assert final_message(log) == "x; ValueError: no; over"
    assert final_message("cut off…\n" * 500).count("cut off") == 3
    assert final_message("a\x1b[31mb\x00\n") == "a [31mb"
    words = final_message("y" * 5000 + " the end")
    assert words.startswith("…y")
    assert words.endswith(" the end")
    assert len(words) <= 400
    assert final_message('{"message": "half a li') == '{"message": "half a li'


def test_short_text() -> None:
    assert short("a\n b\t c") == "a b c"
    assert short("é" * 900) == "é" * (LIMIT - 1) + "…"


def test_a_slow_start_is_known_without_events(make_owner: Make) -> None:
    """The kubelet sends no more events about a pod that has had many: the time the container lived tells it too."""
    record = PODS["slow"]
    owner = make_owner(record["spec"])
    (found,) = observe_pod(record["pod"], owner, []).problems
    assert found.reason == "StartTooSlow"
    patient = make_owner({**record["spec"], "probes": {"startupTimeoutSeconds": 300}})
    (found,) = observe_pod(record["pod"], patient, []).problems
    assert found.reason == "CrashLoop"


def test_a_look_that_gets_no_pod() -> None:
    event = {
        "reason": "FailedCreate",
        "message": 'Error creating: pods "tiny-model-1-x" is forbidden: exceeded quota: q, requested: pods=1',
        "lastTimestamp": TIME,
    }
    (found,) = inspection_refusals([event, {**event, "message": event["message"].replace("1-x", "1-y")}])
    assert (found.pod, found.reason, found.count) == ("", "QuotaExceeded", 2)
    assert "a pod is forbidden: exceeded quota: q" in found.message
    assert inspection_refusals([{"reason": "SuccessfulCreate", "message": "Created pod"}]) == ()
