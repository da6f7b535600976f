"""What pods report as wrong, in words that name the field to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.reconcile.pods import MESSAGE_LIMIT, Problem, observe_pod

Json = dict[str, Any]
TIME = "2026-01-01T00:00:00Z"


def body(**status: Any) -> Json:
    return {
        "metadata": {"name": "tiny-1", "uid": "p1", "creationTimestamp": TIME, "labels": {"octavo.dev/revision": "r"}},
        "spec": {
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


@pytest.fixture
def problem(make_owner: Callable[..., LLMDeployment]) -> Callable[..., Problem]:
    def only(pod: Json, spec: Json | None = None, events: list[Json] | None = None) -> Problem:
        (found,) = observe_pod(pod, make_owner(spec), events or []).problems
        return found

    return only


def test_a_serving_pod(make_owner: Callable[..., LLMDeployment]) -> None:
    pod = observe_pod(
        body(
            conditions=[{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
            podIP="10.0.0.9",
            containerStatuses=[container(state={"running": {"startedAt": TIME}})],
        ),
        make_owner(),
        [],
    )
    assert (pod.ready, pod.loaded, pod.active, pod.scheduled, pod.ip) == (True, True, True, True, "10.0.0.9")
    assert (pod.revision, pod.config, pod.problems) == ("r", "tiny-config-1", ())


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff"])
def test_a_model_image_that_cannot_be_pulled(reason: str, problem: Callable[..., Problem]) -> None:
    said = 'Back-off pulling image "registry.local/models/tiny:1": ErrImagePull: not found'
    found = problem(body(containerStatuses=[container(**waiting(reason, said))]))
    assert found.reason == "ModelPullFailed"
    assert found.message.startswith("spec.model.uri: 'oci://registry.local/models/tiny:1' cannot be pulled")
    assert found.message.endswith("not found")


def test_a_server_image_that_cannot_be_pulled(problem: Callable[..., Problem]) -> None:
    pod = body(containerStatuses=[container(**waiting("ImagePullBackOff", 'Back-off pulling image "server:1"'))])
    ours = problem(pod)
    assert (ours.reason, ours.message.split(":")[0]) == ("ImagePullFailed", "the installation's engine image")
    given = problem(pod, {"engine": {"image": "server:1"}})
    assert given.message.startswith("spec.engine.image: 'server:1' cannot be pulled (ImagePullBackOff)")


def test_a_crash_loop_tells_the_last_words(problem: Callable[..., Problem]) -> None:
    pod = body(
        containerStatuses=[
            container(
                restartCount=4,
                lastState=ended(1, "x" * 5000 + "no such model"),
                **waiting("CrashLoopBackOff", "back-off"),
            )
        ]
    )
    found = problem(pod)
    assert (found.reason, found.count) == ("CrashLoop", 4)
    assert found.message.startswith("container server ended with exit code 1 (restarts: 4); its last words: x")
    assert found.message.endswith("no such model")
    assert len(found.message) <= MESSAGE_LIMIT


def test_too_little_memory(problem: Callable[..., Problem]) -> None:
    state = {"state": {"running": {}}, "lastState": ended(137, reason="OOMKilled"), "restartCount": 1}
    found = problem(body(containerStatuses=[container(**state)]))
    assert found.reason == "OOMKilled"
    assert "spec.resources.memory (16Gi)" in found.message


def test_a_download_that_fails(problem: Callable[..., Problem]) -> None:
    failing = container("prefetch", state=ended(1, "org/x@main: the hub has no such model"))
    pod = body(initContainerStatuses=[failing], containerStatuses=[container(**waiting("PodInitializing"))])
    found = problem(pod, {"model": {"uri": "hf://org/x"}})
    assert found.reason == "ModelPullFailed"
    assert found.message.startswith("spec.model.uri: 'hf://org/x' cannot be downloaded (exit code 1")


def test_a_missing_secret_names_the_field(problem: Callable[..., Problem]) -> None:
    failing = container("prefetch", **waiting("CreateContainerConfigError", 'secret "hub" not found'))
    spec = {"model": {"uri": "hf://org/x", "credentialsSecretRef": {"name": "hub"}}}
    found = problem(body(initContainerStatuses=[failing]), spec)
    assert found.reason == "CreateContainerConfigError"
    assert found.message.startswith('spec.model.credentialsSecretRef.name: secret "hub" not found')


def test_a_pod_without_a_node_says_what_it_asked_for(problem: Callable[..., Problem]) -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: insufficient nvidia.com/gpu"}
    found = problem(body(conditions=[condition]), {"resources": {"gpu": {"count": 2}}})
    assert found.reason == "Unschedulable"
    assert found.message.startswith(
        "no node takes a pod that asks for 4 CPUs, 16Gi memory, 2 nvidia.com/gpu: 0/3 nodes"
    )


def test_a_claim_the_scheduler_misses(problem: Callable[..., Problem]) -> None:
    said = '0/1 nodes are available: persistentvolumeclaim "w" not found.'
    condition = {"type": "PodScheduled", "status": "False", "message": said}
    found = problem(body(conditions=[condition]), {"model": {"uri": "pvc://w/x"}})
    assert found.reason == "ModelVolumeUnavailable"
    assert found.message == f"spec.model.uri: 'pvc://w/x': {said}"


def test_a_claim_that_is_not_there(problem: Callable[..., Problem]) -> None:
    event = {
        "reason": "FailedMount",
        "message": 'persistentvolumeclaim "w" not found',
        "count": 3,
        "lastTimestamp": TIME,
    }
    found = problem(body(), {"model": {"uri": "pvc://w/x"}}, [event, event])
    assert (found.reason, found.count) == ("FailedMount", 3)
    assert found.message.startswith("spec.model.uri: 'pvc://w/x'")


def test_starting_is_no_problem(make_owner: Callable[..., LLMDeployment]) -> None:
    for reason in ("ContainerCreating", "PodInitializing"):
        pod = observe_pod(body(containerStatuses=[container(**waiting(reason))]), make_owner(), [])
        assert (pod.problems, pod.loaded) == ((), False)


def test_an_evicted_pod(problem: Callable[..., Problem]) -> None:
    found = problem(body(phase="Failed", reason="Evicted", message="the node was low on memory"))
    assert (found.reason, found.message) == ("Evicted", "the node was low on memory")
