"""The plan: what it does with a world, and that it always comes to rest in the wanted state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled
from tests.unit.operator.world import World, condition

from octavo_operator.api.resource import LLMDeployment, parse
from octavo_operator.api.v1alpha1 import Spec
from octavo_operator.reconcile.plan import Apply, Delete, Observed, plan
from octavo_operator.resources import config
from octavo_operator.resources.common import Installation
from octavo_operator.resources.deployment import config_name
from octavo_operator.rollout.replicas import DRAIN_NOTICE_SECONDS, PodAnnotations
from octavo_operator.status.input import Scaling

Json = dict[str, Any]
BUILTIN = {"autoscaling": {"mode": "Builtin", "minReplicas": 0, "maxReplicas": 5}}


@pytest.fixture
def make_world(make_owner: Callable[..., LLMDeployment], installation: Installation) -> Callable[..., World]:
    def make(spec: Json | None = None) -> World:
        return World(make_owner(spec), installation)

    return make


def test_a_new_resource_gets_all_children_and_becomes_ready(make_world: Callable[..., World]) -> None:
    world = make_world({"replicas": 2})
    final = world.settle()
    kinds = sorted(kind for kind, _ in world.children)
    assert kinds == sorted(
        [
            *("ServiceAccount", "ConfigMap", "NetworkPolicy", "NetworkPolicy", "PodDisruptionBudget"),
            *("Service", "Service", "Deployment", "ControllerRevision"),
        ]
    )
    assert len(world.pods) == 2
    assert condition(final, "Ready")["reason"] == "AllReplicasReady"
    assert final.status["observedGeneration"] == 1
    assert final.status["selector"] == "octavo.dev/llmdeployment=tiny,app.kubernetes.io/component=server"


def test_the_record_the_account_and_the_settings_come_before_the_pods(make_world: Callable[..., World]) -> None:
    world = make_world()
    first = [action.body["kind"] for action in world.pass_().actions if isinstance(action, Apply)]
    assert first[0] == "ServiceAccount"
    assert first.index("Job") > 0
    world.run()
    then = [action.body["kind"] for action in world.plan().actions if isinstance(action, Apply)]
    assert then == ["ControllerRevision", "ConfigMap", "Deployment"]


def test_what_someone_changed_is_put_back(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.settle()
    world.children["Service", "tiny"]["spec"]["ports"][0]["port"] = 81
    (action,) = world.plan().actions
    assert isinstance(action, Apply)
    assert action.body["spec"]["ports"][0]["port"] == 8000


def test_what_the_api_server_adds_is_left_alone(make_world: Callable[..., World]) -> None:
    world = make_world({"resources": {"cpu": "1000m"}})
    world.settle()
    container = world.children["Deployment", "tiny"]["spec"]["template"]["spec"]["containers"][0]
    container["resources"]["requests"]["cpu"] = "1"
    container["imagePullPolicy"] = "Always"
    world.children["Service", "tiny"]["spec"]["clusterIP"] = "10.0.0.1"
    world.children["NetworkPolicy", "tiny"]["spec"].pop("egress")
    assert world.plan().actions == ()


def test_an_injected_container_is_left_alone_and_an_added_rule_is_not(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.settle()
    containers = world.children["Deployment", "tiny"]["spec"]["template"]["spec"]["containers"]
    containers.insert(0, {"name": "sidecar"})
    assert world.plan().actions == ()
    world.children["NetworkPolicy", "tiny"]["spec"]["egress"].append({})
    (action,) = world.plan().actions
    assert isinstance(action, Apply)
    assert action.body["kind"] == "NetworkPolicy"


def test_a_field_taken_out_of_the_spec_is_applied(make_world: Callable[..., World]) -> None:
    world = make_world({"scheduling": {"nodeSelector": {"zone": "a"}}})
    world.settle()
    body = {"metadata": {"name": "tiny", "namespace": "models", "uid": "u1", "generation": 2}}
    spec = {"model": {"uri": "oci://registry.local/models/tiny:1"}, "resources": {"gpu": {"count": 0}}}
    world.owner = parse({**body, "spec": spec, "status": world.owner.status})
    applied = [a.body["kind"] for a in world.plan().actions if isinstance(a, Apply)]
    assert applied == ["ControllerRevision", "Deployment"]


def test_protections_go_when_they_are_switched_off(
    make_world: Callable[..., World], make_owner: Callable[..., LLMDeployment]
) -> None:
    world = make_world()
    world.settle()
    world.owner = make_owner({"availability": {"podDisruptionBudget": False, "networkPolicy": False}})
    gone = {(a.kind, a.name) for a in world.plan().actions if isinstance(a, Delete)}
    assert gone == {("PodDisruptionBudget", "tiny"), ("NetworkPolicy", "tiny"), ("NetworkPolicy", "tiny-fetch")}


def test_old_settings_stay_while_a_pod_mounts_them(
    make_world: Callable[..., World], make_owner: Callable[..., LLMDeployment]
) -> None:
    world = make_world()
    world.settle()
    old = next(name for kind, name in world.children if kind == "ConfigMap")
    world.owner = make_owner({"engine": {"maxModelLen": 128}})
    world.pass_()
    assert ("ConfigMap", old) in world.children
    world.settle()
    assert ("ConfigMap", old) not in world.children
    assert len([1 for kind, _ in world.children if kind == "ConfigMap"]) == 1


def test_an_upgrade_of_the_operator_restarts_nothing(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.settle()
    before = copy.deepcopy(world.children["Deployment", "tiny"]["spec"]["template"])
    world.installation = Installation("octavo-server:2", "octavo-server-cpu:2", "octavo-system", "http://gateway")
    world.settle()
    assert world.children["Deployment", "tiny"]["spec"]["template"] == before


def test_settings_that_a_new_operator_adds_restart_nothing(
    make_world: Callable[..., World], make_owner: Callable[..., LLMDeployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    added = config.server_settings
    with monkeypatch.context() as patch:
        patch.setattr(
            config, "server_settings", lambda owner: {k: v for k, v in added(owner).items() if k != "tenant-header"}
        )
        world.settle()
    before = copy.deepcopy(world.children)
    world.settle()
    assert world.children["Deployment", "tiny"]["spec"] == before["Deployment", "tiny"]["spec"]
    assert config_maps(world.children) == config_maps(before)
    world.owner = make_owner({"engine": {"maxModelLen": 128}})
    world.settle()
    mounted = config_name(world.children["Deployment", "tiny"]["spec"]["template"])
    assert "tenant-header = true" in config_maps(world.children)[mounted]["server.toml"]


def config_maps(children: Json) -> Json:
    return {name: body["data"] for (kind, name), body in children.items() if kind == "ConfigMap"}


def test_the_new_image_comes_with_the_next_change_of_spec(
    make_world: Callable[..., World], make_owner: Callable[..., LLMDeployment]
) -> None:
    world = make_world()
    world.settle()
    world.installation = Installation("octavo-server:2", "octavo-server-cpu:2", "octavo-system")
    world.owner = make_owner({"engine": {"maxModelLen": 128}})
    world.settle()
    template = world.children["Deployment", "tiny"]["spec"]["template"]
    assert template["spec"]["containers"][0]["image"] == "octavo-server-cpu:2"


def test_lost_settings_of_a_pinned_template_are_made_again(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.settle()
    name = next(name for kind, name in world.children if kind == "ConfigMap")
    del world.children["ConfigMap", name]
    world.settle()
    assert ("ConfigMap", name) in world.children


@pytest.mark.parametrize("lost", ["settings", "template", "revision"])
@pytest.mark.parametrize("model", ["oci://r/m:1", "oci://r/m:2"])
def test_whatever_is_lost_of_its_record_what_serves_goes_on(
    make_world: Callable[..., World], lost: str, model: str
) -> None:
    world = make_world({"model": {"uri": "oci://r/m:1"}})
    world.settle()
    live = world.children["Deployment", "tiny"]["metadata"]
    world.children = {key: body for key, body in world.children.items() if key[0] != "ControllerRevision"}
    if lost == "settings":
        world.children = {key: body for key, body in world.children.items() if key[0] != "ConfigMap"}
    elif lost == "template":
        del live["annotations"]["octavo.dev/applied-template"]
    else:
        del live["labels"]["octavo.dev/revision"]
    world.owner = replace(world.owner, spec=Spec.model_validate({"model": {"uri": model}}))
    world.said = None
    decided = world.plan()
    assert not [action for action in decided.actions if isinstance(action, Delete) and action.kind == "Deployment"]
    if lost == "settings" and model == "oci://r/m:1":
        # Their name tells their content: nothing is to be looked at anew.
        assert not [a for a in decided.actions if isinstance(a, Apply) and a.body["kind"] == "Job"]
    world.said = ""
    world.settle()
    assert all(pod.ready for pod in world.pods.values())


def test_a_stranger_of_a_childs_name_is_not_touched(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.children["Service", "tiny"] = {"kind": "Service", "metadata": {"name": "tiny", "uid": "x"}, "spec": {}}
    decided = world.plan()
    assert decided.actions == ()
    assert condition(decided, "Ready")["reason"] == "NameConflict"
    assert "Service tiny exists" in condition(decided, "SpecValid")["message"]


def test_children_of_a_deleted_namesake_are_waited_for(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.settle()
    world.owner = replace(world.owner, uid="u2", status={})
    decided = world.plan()
    assert decided.actions == ()
    assert "still exists" in condition(decided, "SpecValid")["message"]


def test_a_refusal_is_shown(make_world: Callable[..., World]) -> None:
    world = make_world()
    decided = plan(world.owner, world.installation, Observed(refused="quota exceeded"), world.now)
    assert condition(decided, "Ready") | {"lastTransitionTime": ""} == {
        "type": "Ready",
        "status": "False",
        "reason": "ApplyRefused",
        "message": "the API server rejects an object of the spec: quota exceeded",
        "observedGeneration": 1,
        "lastTransitionTime": "",
    }


def test_suspend_runs_nothing_and_holds_nothing(
    make_world: Callable[..., World], make_owner: Callable[..., LLMDeployment]
) -> None:
    world = make_world({"replicas": 2})
    world.settle()
    world.owner = make_owner({"replicas": 2, "suspend": True})
    final = world.settle()
    assert not world.pods
    assert world.children["Service", "tiny"]["metadata"]["annotations"]["octavo.dev/hold"] == "false"
    assert condition(final, "Ready")["reason"] == "Suspended"


def test_builtin_ignores_spec_replicas(make_world: Callable[..., World]) -> None:
    world = make_world({**BUILTIN, "replicas": 4})
    assert world.plan().replicas == 1


def test_builtin_keeps_what_runs_until_it_has_decided(make_world: Callable[..., World]) -> None:
    world = make_world(BUILTIN)
    world.settle()
    world.scaling = Scaling(3, "KvOccupancy", "")
    world.settle()
    world.scaling = None
    assert world.plan().replicas == 3


def test_fewer_replicas_take_two_steps(make_world: Callable[..., World]) -> None:
    world = make_world(BUILTIN)
    world.scaling = Scaling(2, "", "")
    world.settle()
    world.scaling = Scaling(1, "", "")
    first = world.pass_()
    assert first.replicas == 2
    assert [type(action) for action in first.actions] == [PodAnnotations]
    assert first.requeue_after == DRAIN_NOTICE_SECONDS
    drain_requested_at = first.actions[0]
    world.now += DRAIN_NOTICE_SECONDS
    second = world.pass_()
    assert second.replicas == 1
    world.run()
    assert isinstance(drain_requested_at, PodAnnotations)
    assert drain_requested_at.pod not in world.pods


class History:
    """What can happen to a resource, one method each."""

    def __init__(self) -> None:
        self.world = World(self.owner({}, {}), Installation("s:1", "c:1", "octavo-system"))

    @staticmethod
    def owner(spec: Json, status: Json) -> LLMDeployment:
        base = {"model": {"uri": "oci://r/m:1"}, "resources": {"gpu": {"count": 0}}}
        meta = {"name": "tiny", "namespace": "models", "uid": "u1", "generation": 1}
        return parse({"metadata": meta, "spec": {**base, **spec}, "status": status})

    def new_spec(self, spec: Json) -> None:
        self.world.owner = self.owner(spec, self.world.owner.status)

    def recommendation(self, replicas: int) -> None:
        self.world.scaling = Scaling(replicas, "Any", "")

    def killed_after(self, actions: int) -> None:
        self.world.pass_(actions)

    def pass_(self, _: None) -> None:
        self.world.pass_()

    def time(self, _: None) -> None:
        self.world.run()

    def lost_child(self, index: int) -> None:
        keys = [key for key in sorted(self.world.children) if key[0] != "ConfigMap" or not self.world.pods]
        if keys:
            del self.world.children[keys[index % len(keys)]]

    def lost_pod(self, index: int) -> None:
        if self.world.pods:
            del self.world.pods[sorted(self.world.pods)[index % len(self.world.pods)]]

    def upgrade(self, version: int) -> None:
        self.world.installation = Installation(f"s:{version}", f"c:{version}", "octavo-system")

    def restart(self, _: None) -> None:
        self.world.scaling = None


specs = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(0, 3),
        "suspend": st.booleans(),
        "engine": st.sampled_from([{}, {"maxModelLen": 64}, {"threads": 2}]),
        "autoscaling": st.sampled_from([{}, {"mode": "External"}, BUILTIN["autoscaling"]]),
        "model": st.sampled_from([{"uri": "oci://r/m:1"}, {"uri": "hf://org/tiny"}]),
        "routing": st.sampled_from([{}, {"strategy": "RoundRobin"}, {"maxLoadPercentOfMean": 200}]),
        "availability": st.sampled_from([{}, {"networkPolicy": False}, {"podDisruptionBudget": False}]),
    },
)
events = st.one_of(
    st.tuples(st.just("new_spec"), specs),
    st.tuples(st.sampled_from(["recommendation", "lost_child", "lost_pod"]), st.integers(0, 6)),
    st.tuples(st.just("killed_after"), st.integers(0, 8)),
    st.tuples(st.just("upgrade"), st.integers(1, 3)),
    st.tuples(st.sampled_from(["pass_", "time", "restart"]), st.none()),
)


@settings(max_examples=scaled(60), deadline=None)
@given(story=st.lists(events, max_size=12))
def test_whatever_happened_it_converges_and_rests(story: list[tuple[str, Any]]) -> None:
    history = History()
    world = history.world
    for what, value in story:
        getattr(history, what)(value)
        deployments = [a for a in world.plan().actions if isinstance(a, Apply) and a.body["kind"] == "Deployment"]
        assert len(deployments) <= 1, "two writers of the replicas"
    final = world.settle()
    spec = world.owner.spec
    if spec.suspend:
        expected = 0
    elif spec.autoscaling.mode != "Builtin":
        expected = spec.replicas
    else:
        expected = min(5, world.scaling.desired) if world.scaling else len(world.pods)
    assert len(world.pods) == final.status["desiredReplicas"] == expected
    assert all(pod.revision == world.owner.revision and pod.drain_requested_at is None for pod in world.pods.values())
    assert sum(kind == "ConfigMap" for kind, _ in world.children) == 1
    assert not any(kind == "Job" for kind, _ in world.children)
