"""Adapters come and go without a restart; one that cannot be served stops nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.operator.world import World, condition

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.events.diff import event_diff
from octavo_operator.observe import fit
from octavo_operator.observe.memory_estimate import PROCESSES, estimate, refusal
from octavo_operator.reconcile.plan import Apply, Delete, Plan
from octavo_operator.resources import adapter_job, adapters, config, deployment, protection, services
from octavo_operator.resources.common import Installation
from octavo_operator.rollout.replicas import PodAnnotations
from octavo_operator.status.input import AdapterReplicas, Load
from octavo_protocol import names
from octavo_protocol.adapters import AdapterInspection, WantedAdapter, decode_wanted
from octavo_protocol.model import ModelFailure, ModelReport, encode_inspection

Json = dict[str, Any]
Make = Callable[..., LLMDeployment]
MODEL = ModelReport(
    revision="c0ffee",
    architecture="llama",
    weights={"auto": 2_000_000_000},
    kv_elements_per_token=11_520,
    max_length=8192,
    token_bytes=19_200,
    row_bytes=251_904,
    adapter_elements=3_000_000,
    vocab=128_000,
    hidden=4096,
)
FOUND = encode_inspection(AdapterInspection(revision="beef", rank=16, file_bytes=1_000_000)).decode()
BROKEN = encode_inspection(ModelFailure(reason="InvalidModel", message="use_dora is true: not supported")).decode()


def spec(*wanted: str, **engine: Any) -> Json:
    listed = [{"name": name, "uri": f"hf://org/{name}"} for name in wanted]
    return {"model": {"uri": "hf://org/tiny", "adapters": listed}, "engine": engine}


@pytest.fixture
def make_world(make_owner: Make, installation: Installation) -> Callable[..., World]:
    def make(*wanted: str, **engine: Any) -> World:
        world = World(make_owner(spec(*wanted, **engine)), installation)
        world.said = encode_inspection(MODEL).decode()
        world.adapters = dict.fromkeys(("sql", "chat", "code"), FOUND) | {"bad": BROKEN}
        return world

    return make


def change(world: World, make_owner: Make, *wanted: str, **engine: Any) -> None:
    world.owner = make_owner(spec(*wanted, **engine), status=world.owner.status)


def listed(world: World) -> list[WantedAdapter]:
    return decode_wanted(world.children["ConfigMap", adapters.list_name(world.owner)]["data"]["list.json"].encode())


def jobs(world: World) -> list[str]:
    return [name for kind, name in world.children if kind == "Job"]


def deployment_of(world: World) -> Json:
    found: Json = world.children["Deployment", "tiny"]
    return found


def run(world: World, passes: int = 6) -> Plan:
    """Passes without an end: a failing Job makes a world that never rests."""
    for _ in range(passes):
        decided = world.pass_()
        world.run()
    return decided


def test_a_change_of_adapters_replaces_no_pod(make_world: Callable[..., World], make_owner: Make) -> None:
    world = make_world("sql")
    world.settle()
    before, pods = deployment_of(world), set(world.pods)
    change(world, make_owner, "sql", "chat")
    world.settle()
    assert [each.name for each in listed(world)] == ["sql", "chat"]
    change(world, make_owner, "chat")
    final = world.settle()
    assert [each.name for each in listed(world)] == ["chat"]
    assert (deployment_of(world), set(world.pods)) == (before, pods)
    assert [each["name"] for each in final.status["adapters"]] == ["chat"]


def test_with_room_reserved_the_first_and_the_last_replace_none_either(
    make_world: Callable[..., World], make_owner: Make
) -> None:
    reserved = {"adapters": {"maxLoaded": 8}}
    world = make_world(**reserved)
    world.settle()
    before = deployment_of(world)
    assert listed(world) == []
    change(world, make_owner, "sql", **reserved)
    world.settle()
    change(world, make_owner, "sql")  # the default, now that there are adapters
    world.settle()
    change(world, make_owner, **reserved)
    world.settle()
    assert deployment_of(world) == before
    change(world, make_owner)
    world.settle()
    assert deployment_of(world) != before
    assert ("ConfigMap", adapters.list_name(world.owner)) not in world.children


def test_an_adapter_is_inspected_once_and_pinned(make_world: Callable[..., World], make_owner: Make) -> None:
    world = make_world("sql")
    world.pass_()
    assert adapter_job.job_name(world.owner, world.owner.spec.model.adapters[0]) in jobs(world)
    final = world.settle()
    assert jobs(world) == []
    assert listed(world) == [WantedAdapter(name="sql", source="hf://org/sql@beef", file_bytes=1_000_000)]
    (state,) = final.status["adapters"]
    assert state | {"message": ""} == {
        "name": "sql", "identity": adapters.identity(world.owner.spec.model.adapters[0]),
        "revision": "beef", "rank": 16,
        "fileBytes": 1_000_000, "state": "Loading", "readyReplicas": 0, "message": "",
    }  # fmt: skip
    # Neither a lost status nor another spec of the pods moves it to another commit.
    world.adapters = {}
    world.owner = make_owner(spec("sql", maxModelLen=128))
    assert world.settle().status["adapters"][0]["revision"] == "beef"


def test_one_that_cannot_be_served_stops_nothing_else(make_world: Callable[..., World]) -> None:
    world = make_world("bad", "sql")
    decided = run(world)
    assert condition(decided, "Ready")["status"] == "True"
    bad, sql = decided.status["adapters"]
    assert (bad["state"], sql["state"]) == ("Failed", "Loading")
    assert bad["message"] == "spec.model.adapters: 'hf://org/bad': use_dora is true: not supported"
    # Requests for it get the reason; the Job tries again, as the repository may be repaired.
    assert listed(world)[0] == WantedAdapter(
        name="bad", source="hf://org/bad", failure="use_dora is true: not supported"
    )
    assert len(jobs(world)) == 1
    failed = condition(decided, "AdaptersReady")
    assert (failed["status"], failed["reason"]) == ("False", "AdapterFailed")
    world.adapters["bad"] = FOUND
    assert world.settle().status["adapters"][0]["state"] == "Loading"


def test_a_name_keeps_its_old_source_until_the_new_one_can_be_served(
    make_world: Callable[..., World], make_owner: Make
) -> None:
    world = make_world("sql")
    world.settle()
    before = listed(world)
    resource = spec("sql")
    resource["model"]["adapters"][0]["uri"] = "hf://org/bad"
    world.adapters["sql"] = BROKEN
    world.owner = make_owner(resource, status=world.owner.status)
    world.pass_()
    assert listed(world) == before
    decided = run(world)
    assert decided.status["adapters"][0]["state"] == "Failed"
    assert listed(world) == before
    resource["model"]["adapters"][0]["uri"] = "hf://org/chat"
    world.adapters["sql"] = FOUND
    world.owner = make_owner(resource, status=world.owner.status)
    run(world)
    assert listed(world) == [WantedAdapter(name="sql", source="hf://org/chat@beef", file_bytes=1_000_000)]


def test_too_large_a_rank_is_refused_until_there_is_room(make_world: Callable[..., World], make_owner: Make) -> None:
    world = make_world("sql", adapters={"maxRank": 8})
    (state,) = world.settle().status["adapters"]
    why = "its rank is 16, and spec.engine.adapters.maxRank is 8; raise it to 16"
    assert (state["state"], state["message"]) == ("Failed", f"spec.model.adapters: 'hf://org/sql': {why}")
    assert listed(world)[0].failure == why
    change(world, make_owner, "sql", adapters={"maxRank": 16})
    assert world.settle().status["adapters"][0]["state"] == "Loading"
    assert listed(world)[0].failure == ""


def test_only_some_are_inspected_at_the_same_time_and_failures_do_not_count(
    make_world: Callable[..., World],
) -> None:
    names_ = [f"a{number}" for number in range(9)]
    world = make_world("bad", *names_)
    run(world, 3)
    assert len(jobs(world)) == 1 + 4
    world.adapters |= dict.fromkeys(names_, FOUND)
    run(world, 9)
    assert len(jobs(world)) == 1, "the one that fails"
    assert len(listed(world)) == 10


def test_running_pods_are_made_to_read_the_list(make_world: Callable[..., World], make_owner: Make) -> None:
    world = make_world("sql")
    world.settle()
    (pod,) = world.pods.values()
    assert pod.adapter_list
    change(world, make_owner, "sql", "chat")
    world.pass_()  # the Job
    actions = world.plan().actions
    kinds = [type(action) for action in actions]
    assert kinds.index(PodAnnotations) > kinds.index(Apply), "the list first"
    world.settle()
    (again,) = world.pods.values()
    assert again.adapter_list != pod.adapter_list
    assert not [action for action in world.plan().actions if isinstance(action, PodAnnotations)]


def load(ready: int, **failures: str) -> Load:
    return Load(adapters={("sql", "hf://org/sql@beef"): AdapterReplicas(ready, failures)})


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("org/tiny-GGUF", None),
        (
            "org/large",
            "its adapter_config.json names org/large as its base model, not org/tiny: its answers may be poor",
        ),
    ],
)
def test_an_adapter_that_names_another_base_model_is_served_with_a_message(
    base: str, message: str | None, make_world: Callable[..., World]
) -> None:
    world = make_world("sql")
    inspected = AdapterInspection(revision="beef", rank=16, file_bytes=1_000_000, base=base)
    world.adapters["sql"] = encode_inspection(inspected).decode()
    world.settle()
    world.load = load(1)
    (shown,) = world.settle().status["adapters"]
    assert (shown["state"], shown.get("message"), shown["baseModel"]) == ("Ready", message, base)
    del world.children["ConfigMap", adapters.list_name(world.owner)]
    world.settle()
    assert list(world.settle().status["adapters"]) == [shown], "someone deleted the record of the inspection"


@pytest.mark.parametrize(
    ("found", "state", "message", "reason"),
    [
        (Load(), "Loading", "no replica has it yet", "AdaptersPending"),
        (load(0), "Loading", "no replica has it yet", "AdaptersPending"),
        (load(1), "Ready", None, "AllAdaptersReady"),
        (load(1, p2="out of memory"), "Ready", "pod p2: out of memory", "AllAdaptersReady"),
        (load(0, p1="of another model"), "Failed", "pod p1: of another model", "AdapterFailed"),
        # A report on what had the name before.
        (Load(adapters={("sql", "hf://org/sql@old"): AdapterReplicas(1)}), "Loading", "no replica has it yet",
         "AdaptersPending"),
    ],
)  # fmt: skip
def test_replicas_say_whether_they_have_it(
    found: Load, state: str, message: str | None, reason: str, make_world: Callable[..., World]
) -> None:
    world = make_world("sql")
    before = world.settle().status
    world.load = found
    after = world.settle()
    (shown,) = after.status["adapters"]
    assert (shown["state"], shown.get("message")) == (state, message)
    assert condition(after, "AdaptersReady")["reason"] == reason
    events = [event for event in event_diff(before, after.status) if event.reason.startswith("Adapter")]
    expected = {"Ready": [(False, "AdapterReady")], "Failed": [(True, "AdapterFailed")]}.get(state, [])
    if state == "Ready" and message:
        expected.append((True, "AdapterFailed"))
    assert [(event.warning, event.reason) for event in events] == expected
    # An operator that has just started has no reports yet, and shows a failure again once it has.
    world.load = None
    (again,) = world.plan().status["adapters"]
    assert again["state"] == ("Loading" if state == "Failed" else state)
    assert again["readyReplicas"] == shown["readyReplicas"]


def test_each_reason_of_a_failure_is_an_event_once(make_world: Callable[..., World]) -> None:
    world = make_world("sql")
    world.settle()
    seen: list[list[tuple[str, str]]] = []
    for found in (
        load(1),
        load(1, p2="out of memory"),
        load(1, p3="out of memory"),
        load(0, p1="out of memory"),
        load(0, p1="of another model"),
        load(0, p1="of another model"),
        load(2),
    ):
        before, world.load = world.owner.status, found
        after = world.pass_().status
        seen.append([(event.reason, event.message) for event in event_diff(before, after) if "Adapter" in event.reason])
    ready = [("AdapterReady", "replicas can use adapter sql")]
    assert seen == [
        ready,
        [("AdapterFailed", "adapter sql: pod p2: out of memory")],
        [],
        [("AdapterFailed", "adapter sql: pod p1: out of memory")],
        [("AdapterFailed", "adapter sql: pod p1: of another model")],
        [],
        ready,
    ]


def test_a_refused_adapter_is_an_event_with_the_reason(make_world: Callable[..., World]) -> None:
    world = make_world("sql", "bad", adapters={"maxRank": 8})
    before, found = world.owner.status, run(world).status
    why = "its rank is 16, and spec.engine.adapters.maxRank is 8; raise it to 16"
    events = [event.message for event in event_diff(before, found) if event.reason == "AdapterFailed"]
    assert events == [
        f"adapter sql: spec.model.adapters: 'hf://org/sql': {why}",
        "adapter bad: spec.model.adapters: 'hf://org/bad': use_dora is true: not supported",
    ]


def test_the_folder_of_a_pod_has_a_limit_that_no_list_changes(make_owner: Make, installation: Installation) -> None:
    one, many = (make_owner(spec(*names_)) for names_ in (("sql",), ("sql", "chat", "code")))
    templates = [deployment.pod_template(owner, installation, "c", found=MODEL)["spec"] for owner in (one, many)]
    assert templates[0] == templates[1]
    (volume,) = [each["emptyDir"] for each in templates[0]["volumes"] if each["name"] == "adapters"]
    command = templates[0]["initContainers"][-1]["command"]
    limit = int(command[command.index("--limit") + 1])
    outer = 2 * MODEL.vocab * MODEL.hidden + 2 * 64 * (MODEL.vocab + MODEL.hidden)
    largest = (64 * MODEL.adapter_elements + outer) * 4
    assert limit >= 2 * 64 * largest, "a full list of the largest in float32, with embedding and head, and another one"
    assert config.quantity(volume["sizeLimit"]) > limit, "the container refuses before the kubelet evicts the pod"
    unknown = deployment.pod_template(one, installation, "c")["spec"]
    assert {"name": "adapters", "emptyDir": {}} in unknown["volumes"]
    assert "--limit" not in unknown["initContainers"][-1]["command"]


def test_without_replicas_an_adapter_waits(make_world: Callable[..., World], make_owner: Make) -> None:
    world = make_world()
    world.owner = make_owner({**spec("sql"), "replicas": 0})
    (state,) = world.settle().status["adapters"]
    assert (state["state"], state["message"]) == ("Pending", "no replica is ready")


def test_without_adapters_nothing_of_them_is_shown(make_world: Callable[..., World]) -> None:
    final = make_world().settle()
    assert "adapters" not in final.status
    assert "AdaptersReady" not in {found["type"] for found in final.status["conditions"]}


def test_a_removed_adapter_takes_its_job_with_it(make_world: Callable[..., World], make_owner: Make) -> None:
    world = make_world("bad", "sql")
    run(world)
    change(world, make_owner, "sql")
    (gone,) = [action for action in world.pass_().actions if isinstance(action, Delete)]
    assert gone.kind == "Job"


def test_only_the_sidecar_has_credentials_and_the_server_reads(make_owner: Make, installation: Installation) -> None:
    wanted = {**spec("sql")["model"], "credentialsSecretRef": {"name": "hub"}}
    owner = make_owner({"model": wanted})
    pod = deployment.pod_template(owner, installation, "c")["spec"]
    sidecar, server = pod["initContainers"][-1], pod["containers"][0]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("adapters", "Always")
    credentials = {"name": "adapters-credentials", "mountPath": "/adapters-credentials", "readOnly": True}
    assert credentials in sidecar["volumeMounts"]
    assert credentials not in server["volumeMounts"]
    assert not {"HF_TOKEN", "AWS_ACCESS_KEY_ID"} & {entry["name"] for entry in server["env"]}
    assert {"name": "adapters", "mountPath": "/adapters", "readOnly": True} in server["volumeMounts"]
    settings = config.server_settings(owner)
    assert (settings["max-loaded-adapters"], settings["adapters-file"]) == (8, "/adapters/list.json")
    assert "adapters-file" not in config.server_settings(make_owner())


def test_the_way_out_is_that_of_the_adapters_too(make_owner: Make, installation: Installation) -> None:
    env = [{"name": "HF_ENDPOINT", "value": "http://hub:8080"}]
    owner = make_owner({"model": {**spec("sql")["model"], "uri": "pvc://disk/m"}, "engine": {"env": env}})
    for policy in (protection.network_policy(owner, installation), protection.inspection_policy(owner)):
        assert policy["spec"]["egress"][-1]["ports"] == [{"protocol": "TCP", "port": 8080}]


def test_gateways_get_the_names(make_owner: Make) -> None:
    annotations = services.service(make_owner(spec("sql", "org/chat")), None)["metadata"]["annotations"]
    assert annotations[names.ANNOTATION_ADAPTERS] == "sql,org/chat"
    assert annotations[names.ANNOTATION_MODELS] == "tiny"


@pytest.mark.parametrize("deleted", [True, False])
def test_a_lost_list_is_written_again_at_once_with_the_same_pins(
    make_world: Callable[..., World], *, deleted: bool
) -> None:
    world = make_world("sql", "bad")
    run(world)
    before = world.children["ConfigMap", adapters.list_name(world.owner)]["data"]
    # The branch has moved since.
    world.adapters["sql"] = encode_inspection(AdapterInspection(revision="f00d", rank=8)).decode()
    if deleted:
        del world.children["ConfigMap", adapters.list_name(world.owner)]
    else:
        world.children["ConfigMap", adapters.list_name(world.owner)]["data"] = {"inspected.json": "{", "list.json": ""}
    decided = world.pass_()
    assert world.children["ConfigMap", adapters.list_name(world.owner)]["data"] == before
    assert (decided.status["adapters"][0]["revision"], decided.status["adapters"][0]["rank"]) == ("beef", 16)
    assert len(jobs(world)) == 1, "the one that fails"


def test_without_status_and_list_an_adapter_is_inspected_again(make_world: Callable[..., World]) -> None:
    world = make_world("sql")
    world.settle()
    del world.children["ConfigMap", adapters.list_name(world.owner)]
    world.owner = replace(world.owner, status={})
    world.pass_()
    assert len(jobs(world)) == 1
    assert world.settle().status["adapters"][0]["revision"] == "beef"


def test_a_pin_is_that_of_its_source_alone(make_world: Callable[..., World], make_owner: Make) -> None:
    world = make_world("sql")
    world.settle()
    del world.children["ConfigMap", adapters.list_name(world.owner)]
    resource = spec("sql")
    resource["model"]["adapters"][0]["revision"] = "v2"
    world.owner = make_owner(resource, status=world.owner.status)
    decided = world.pass_()
    assert "revision" not in decided.status["adapters"][0]
    assert len(jobs(world)) == 1


def test_another_secret_resolves_no_branch_again(make_world: Callable[..., World], make_owner: Make) -> None:
    world = make_world("sql")
    world.settle()
    before = listed(world)
    world.adapters["sql"] = encode_inspection(AdapterInspection(revision="f00d", rank=8)).decode()
    resource = spec("sql")
    resource["model"]["credentialsSecretRef"] = {"name": "renamed"}
    world.owner = make_owner(resource, status=world.owner.status)
    world.pass_()
    assert not [name for name in jobs(world) if "-lora-" in name]
    world.settle()
    assert listed(world) == before


def test_a_job_that_fails_is_made_again_with_another_secret(make_world: Callable[..., World], make_owner: Make) -> None:
    world = make_world("bad")
    run(world)
    resource = spec("bad")
    resource["model"]["credentialsSecretRef"] = {"name": "hub"}
    world.owner = make_owner(resource, status=world.owner.status)
    run(world, 2)
    (body,) = [body for (kind, name), body in world.children.items() if kind == "Job" and "-lora-" in name]
    assert secrets_of(body) == {"HF_TOKEN": {"name": "hub", "key": "token"}}


def secrets_of(job: Json) -> Json:
    env = job["spec"]["template"]["spec"]["containers"][0]["env"]
    return {entry["name"]: entry["valueFrom"]["secretKeyRef"] for entry in env if "valueFrom" in entry}


@pytest.mark.parametrize("model", ["pvc://disk/m", "oci://registry.local/m:1", "s3://models/m", "hf://org/m"])
@pytest.mark.parametrize(
    ("uri", "keys"),
    [
        ("hf://org/sql", {"HF_TOKEN": "token"}),
        (
            "s3://adapters/sql",
            dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")),
        ),
        ("gs://adapters/sql", {"GOOGLE_SERVICE_ACCOUNT_KEY": None}),
    ],
)
def test_adapters_of_any_scheme_have_the_keys_of_the_secret(
    model: str, uri: str, keys: Json, make_owner: Make, installation: Installation
) -> None:
    listed_ = [{"name": "sql", "uri": uri}]
    owner = make_owner({"model": {"uri": model, "adapters": listed_, "credentialsSecretRef": {"name": "keys"}}})
    job = adapter_job.job(owner, installation, owner.spec.model.adapters[0])
    same = model.partition(":")[0] == uri.partition(":")[0]
    assert secrets_of(job) == {
        variable: {"name": "keys", "key": key or variable}
        # A Secret for the model need not have keys of other schemes.
        | ({} if same and variable != "AWS_SESSION_TOKEN" else {"optional": True})
        for variable, key in keys.items()
    }
    pod = deployment.pod_template(owner, installation, "c")["spec"]
    (volume,) = [each["secret"] for each in pod["volumes"] if each["name"] == "adapters-credentials"]
    assert (volume["secretName"], volume["optional"]) == ("keys", True)
    assert keys.keys() <= {item["path"] for item in volume["items"]}
    other = make_owner({"model": {"uri": model, "adapters": [], "credentialsSecretRef": {"name": "keys"}},
                        "engine": {"adapters": {"maxLoaded": 8}}})  # fmt: skip
    assert deployment.pod_template(other, installation, "c") == deployment.pod_template(owner, installation, "c")


def test_an_adapter_on_the_claim_of_the_model_is_read_in_place(make_owner: Make, installation: Installation) -> None:
    on_claim = [{"name": "sql", "uri": "pvc://disk/adapters/sql/"}]
    world = World(make_owner({"model": {"uri": "pvc://disk/m", "adapters": on_claim}}), installation)
    world.said = encode_inspection(MODEL).decode()
    world.adapters["sql"] = encode_inspection(AdapterInspection(rank=16, file_bytes=1000)).decode()
    world.pass_()
    (job,) = [body for (kind, name), body in world.children.items() if kind == "Job" and "-lora-" in name]
    pod = job["spec"]["template"]["spec"]
    assert "/model/adapters/sql" in pod["containers"][0]["command"]
    assert {"name": "model", "mountPath": "/model", "readOnly": True} in pod["containers"][0]["volumeMounts"]
    claim = {"name": "model", "persistentVolumeClaim": {"claimName": "disk", "readOnly": True}}
    assert claim in pod["volumes"]
    world.settle()
    assert listed(world) == [
        WantedAdapter(name="sql", source="pvc://disk/adapters/sql/", path="/model/adapters/sql", file_bytes=1000)
    ]
    server = deployment_of(world)["spec"]["template"]["spec"]
    assert claim in server["volumes"]
    for policy in (protection.network_policy(world.owner, installation), protection.inspection_policy(world.owner)):
        assert policy["spec"]["egress"] == []


def test_memory_is_reserved_for_the_largest_that_may_be_loaded(make_owner: Make) -> None:
    without, with_ = (estimate(make_owner(spec(*names_)).spec, "8Gi", MODEL) for names_ in ((), ("sql",)))
    assert without is not None
    assert with_ is not None
    assert (without.adapters, with_.adapters) == (0, ((8 << 30) - PROCESSES) // 4), "a quarter at most"
    assert with_.kv < without.kv
    limits = {"adapters": {"maxLoaded": 2, "maxRank": 16}}
    few = estimate(make_owner(spec("sql", **limits)).spec, "8Gi", MODEL)
    assert few is not None
    outer = MODEL.vocab + MODEL.hidden
    assert few.adapters == 2 * 16 * (2 * 3_000_000 + 2 * outer + 4 * outer), "the embedding in float32"
    assert few.total - few.kv == without.total - without.kv + few.adapters
    small = make_owner(spec("sql", **limits, kv={"memory": "1Gi"}))
    tight = estimate(small.spec, "2Gi", MODEL)
    assert tight is not None
    message = refusal(small.spec, tight)
    assert "2 adapters 208Mi" in message
    assert message.endswith(", or lower spec.engine.adapters.maxLoaded or maxRank")


def test_models_of_transformers_take_none(make_owner: Make) -> None:
    foreign = ModelReport(architecture="own", weights={"bfloat16": 1})
    refused = fit.refusal(make_owner(spec("sql")).spec, foreign, fit.MemoryFit())
    assert refused is not None
    assert refused.reason == "AdaptersUnsupported"
    assert fit.refusal(make_owner().spec, foreign, fit.MemoryFit()) is None
