"""What the chart renders: valid, within its rights, and as the values say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeschemas.folder import TEMPLATE, custom_resource_schemas, kubernetes_schemas
from octavo_operator.api import profiles
from octavo_operator.kube import permissions

from .conftest import CHART, ROOT, SYSTEM, Object, Run

Render = Callable[..., list[Object]]

VARIANTS = [
    (),
    ("rbac.scope=namespace",),
    ("rbac.scope=namespace", 'rbac.namespaces=["team-a","team-b"]'),
    ("gateway.apiKeys.existingSecret=keys", 'imagePullSecrets=[{"name":"pull"}]'),
    ("crds.enabled=false", "rbac.create=false", "networkPolicy.enabled=false"),
    ('networkPolicy.clients=[{"namespaceSelector":{"matchLabels":{"team":"a"}}}]', "gateway.service.type=NodePort"),
    ('operator.tolerations=[{"operator":"Exists"}]', "gateway.nodeSelector.disk=ssd", "operator.priorityClassName=p"),
    ("monitoring.dashboards.enabled=true", "monitoring.dashboards.annotations.folder=LLM"),
    ("resourceProfiles.large.memory=64Gi", "resourceProfiles.large.runtimeClassName=kata"),
    ("gateway.podAnnotations.a=b", "operator.podLabels.team=x", "operator.podDisruptionBudget=false"),
]


def named(objects: list[Object], kind: str, name: str = "") -> list[Object]:
    return [o for o in objects if o["kind"] == kind and name in o["metadata"]["name"]]


def container(objects: list[Object], deployment: str) -> dict[str, Any]:
    (found,) = named(objects, "Deployment", deployment)
    containers: list[dict[str, Any]] = found["spec"]["template"]["spec"]["containers"]
    return containers[0]


def rights(rules: list[dict[str, Any]]) -> set[tuple[str, str, str, str]]:
    return {
        (group, resource, verb, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def test_lint_is_strict_and_content(run: Run) -> None:
    run("helm", "lint", "--strict", CHART)
    run("helm", "lint", "--strict", CHART, "--set", "rbac.scope=namespace,gateway.apiKeys.existingSecret=k")


@pytest.mark.parametrize("values", VARIANTS, ids=lambda values: ",".join(values) or "defaults")
def test_objects_are_valid_for_kubernetes(run: Run, render: Render, values: tuple[str, ...]) -> None:
    text = yaml.safe_dump_all(render(*values))
    run("kubeconform", "-strict", "-schema-location", kubernetes_schemas() / TEMPLATE, "-", stdin=text)


def test_kubeconform_would_find_a_misspelt_field(run: Run, render: Render) -> None:
    (deployment,) = named(render(), "Deployment", "operator")
    deployment["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    schemas = kubernetes_schemas() / TEMPLATE
    with pytest.raises(AssertionError, match="livenesProbe"):
        run("kubeconform", "-strict", "-schema-location", schemas, "-", stdin=yaml.safe_dump(deployment))


def test_examples_are_valid(run: Run, tmp_path: Path) -> None:
    crd = ROOT / "crds" / "llmdeployments.octavo.dev.yaml"
    schemas = custom_resource_schemas(crd, tmp_path / "schemas") / TEMPLATE
    run("kubeconform", "-strict", "-schema-location", schemas, ROOT / "examples")


@pytest.mark.parametrize("values", VARIANTS[:3], ids=lambda values: ",".join(values) or "defaults")
def test_no_role_is_broad(render: Render, values: tuple[str, ...]) -> None:
    roles = [o for o in render(*values) if o["kind"] in {"Role", "ClusterRole"}]
    assert roles
    for _, resource, verb, _ in {right for role in roles for right in rights(role["rules"])}:
        assert "*" not in resource + verb
        assert resource not in {"secrets", "pods/exec", "pods/attach", "pods/portforward", "serviceaccounts/token"}
        assert verb not in {"escalate", "bind", "impersonate"}


def test_the_operator_is_granted_what_its_code_says_it_uses(render: Render) -> None:
    objects, rules = render(), permissions.rules()
    (served,) = named(objects, "ClusterRole", "octavo-operator")
    assert rights(served["rules"]) == rights(rules["served"]) | rights(rules["cluster"])
    (own,) = named(objects, "Role", "octavo-operator-own")
    assert rights(own["rules"]) == rights(rules["own"])


def test_scope_namespace_needs_nothing_cluster_wide_but_the_crd(render: Render) -> None:
    objects = render("rbac.scope=namespace", 'rbac.namespaces=["team-a"]', "rbac.aggregatedRoles=false")
    assert not [o for o in objects if o["kind"] in {"ClusterRole", "ClusterRoleBinding"}]
    roles = {(o["metadata"]["namespace"], o["metadata"]["name"]) for o in objects if o["kind"] == "Role"}
    expected = {("team-a", "octavo-operator"), ("team-a", "octavo-gateway"), (SYSTEM, "octavo-operator-own")}
    expected.add((SYSTEM, "octavo-test"))
    assert roles == expected
    assert "--namespace-scope=team-a" in container(objects, "octavo-operator")["args"]
    assert "--namespace=team-a" in container(objects, "octavo-gateway")["args"]


def test_namespaces_that_would_be_ignored_are_refused(render: Render) -> None:
    with pytest.raises(AssertionError, match=r"rbac.namespaces is \[a, b\].*set rbac.scope=namespace"):
        render('rbac.namespaces=["a","b"]')


def test_unknown_values_are_refused_by_name(render: Render) -> None:
    with pytest.raises(AssertionError, match="'gatway' not allowed"):
        render("gatway.replicas=1")


def test_a_digest_wins_over_a_tag(render: Render) -> None:
    digest = "sha256:" + "a" * 64
    objects = render("gateway.image.tag=t", f"gateway.image.digest={digest}", "operator.image.tag=t")
    assert container(objects, "octavo-gateway")["image"] == f"localhost:5000/octavo-gateway@{digest}"
    assert container(objects, "octavo-operator")["image"] == "localhost:5000/octavo-operator:t"
    (test,) = named(objects, "Pod")
    assert test["spec"]["containers"][0]["image"].endswith(digest)


def test_inference_images_reach_the_operator(render: Render) -> None:
    arguments = container(render("serverCpu.image.tag=t1", "server.image.repository=r/s"), "octavo-operator")["args"]
    assert "--server-cpu-image=localhost:5000/octavo-server-cpu:t1" in arguments
    assert any(argument.startswith("--server-image=r/s:") for argument in arguments)


def test_resource_profiles_reach_the_operator_and_are_understood(render: Render) -> None:
    tolerations = 'resourceProfiles.large.tolerations=[{"key":"inference","operator":"Exists"}]'
    objects = render("resourceProfiles.large.cpu=16", "resourceProfiles.large.nodeSelector.pool=inference", tolerations)
    arguments = container(objects, "octavo-operator")["args"]
    (given,) = [each.partition("=")[2] for each in arguments if each.startswith("--resource-profiles=")]
    large = profiles.read(given)["large"]
    assert (large.cpu, large.node_selector, large.tolerations[0].key) == ("16", {"pool": "inference"}, "inference")
    with pytest.raises(AssertionError, match="'gpus' not allowed"):
        render("resourceProfiles.large.gpus=1")


def test_api_keys_are_mounted_as_a_folder_and_given_to_the_test_pod(render: Render) -> None:
    objects = render("gateway.apiKeys.existingSecret=keys", "gateway.apiKeys.key=k")
    gateway, (test,) = container(objects, "octavo-gateway"), named(objects, "Pod")
    assert "--api-key-file=/etc/octavo/keys/k" in gateway["args"]
    assert "subPath" not in gateway["volumeMounts"][0]
    assert "--key-file=/etc/octavo/keys/k" in test["spec"]["containers"][0]["args"]


def test_gateways_find_each_other_and_may_talk(render: Render) -> None:
    objects = render()
    assert "--peers=octavo-gateway-peers.octavo-system" in container(objects, "octavo-gateway")["args"]
    (service,) = named(objects, "Service", "octavo-gateway-peers")
    labels = named(objects, "Deployment", "octavo-gateway")[0]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= labels.items()
    (policy,) = named(objects, "NetworkPolicy", "octavo-gateway")
    peer = {"podSelector": {"matchLabels": service["spec"]["selector"]}}
    admin = [{"protocol": "TCP", "port": 9000}]
    assert any(peer in rule.get("from", ()) and rule["ports"] == admin for rule in policy["spec"]["ingress"])
    assert any(peer in rule.get("to", ()) and rule["ports"] == admin for rule in policy["spec"]["egress"])


def test_gateways_may_wake_models(render: Render) -> None:
    objects = render()
    assert "--operator-service=octavo-operator-wake.octavo-system" in container(objects, "octavo-gateway")["args"]
    (service,) = named(objects, "Service", "octavo-operator-wake")
    port = [{"protocol": "TCP", "port": service["spec"]["ports"][0]["port"]}]
    operators = {"podSelector": {"matchLabels": service["spec"]["selector"]}}
    (gateway,) = named(objects, "Deployment", "octavo-gateway")
    gateways = {"podSelector": {"matchLabels": gateway["spec"]["selector"]["matchLabels"]}}
    (out,) = named(objects, "NetworkPolicy", "octavo-gateway")
    (into,) = named(objects, "NetworkPolicy", "octavo-operator")
    assert {"to": [operators], "ports": port} in out["spec"]["egress"]
    assert any(gateways in rule.get("from", ()) and rule["ports"] == port for rule in into["spec"]["ingress"])


def test_a_gateway_that_drains_is_alive_and_not_ready(render: Render) -> None:
    gateway = container(render(), "octavo-gateway")
    paths = {name: gateway[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}


def test_workers_of_gateways_may_talk_too(render: Render) -> None:
    objects = render("gateway.workers=3")
    assert "--workers=3" in container(objects, "octavo-gateway")["args"]
    (policy,) = named(objects, "NetworkPolicy", "octavo-gateway")
    admin = [{"protocol": "TCP", "port": 9000, "endPort": 9003}]
    assert [rule.get("ports") for rule in policy["spec"]["ingress"]].count(admin) == 1
    assert [rule.get("ports") for rule in policy["spec"]["egress"]].count(admin) == 1


def test_the_gateway_has_time_for_its_own_drain(render: Render) -> None:
    (gateway,) = named(
        render("gateway.drain.delaySeconds=7", "gateway.drain.timeoutSeconds=300"), "Deployment", "octavo-gateway"
    )
    assert gateway["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 317


def test_the_crd_is_kept_unless_told_otherwise(render: Render) -> None:
    def annotations(*values: str) -> dict[str, str]:
        (crd,) = named(render(*values), "CustomResourceDefinition")
        found: dict[str, str] = crd["metadata"].get("annotations", {})
        return found

    assert annotations() == {"helm.sh/resource-policy": "keep"}
    assert annotations("crds.keep=false") == {}
    assert not named(render("crds.enabled=false"), "CustomResourceDefinition")


def test_the_crd_in_the_chart_is_the_generated_one(render: Render) -> None:
    (crd,) = named(render(), "CustomResourceDefinition")
    generated = yaml.safe_load((ROOT / "crds" / "llmdeployments.octavo.dev.yaml").read_text())
    assert crd["spec"] == generated["spec"]


@pytest.mark.parametrize(
    ("deployment", "flag"), [("octavo-operator", "octavo_operator"), ("octavo-gateway", "octavo_gateway")]
)
def test_the_programs_know_every_flag_the_chart_gives_them(render: Render, deployment: str, flag: str) -> None:
    known = "".join(path.read_text() for path in _sources(flag))
    for argument in container(render(*VARIANTS[3]), deployment)["args"]:
        assert f'"{argument.partition("=")[0]}"' in known


def _sources(package: str) -> Iterator[Path]:
    yield from (ROOT / package.removeprefix("octavo_") / package).glob("*.py")
