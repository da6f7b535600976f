"""`rbac.scope: namespace`: two releases side by side, each alone in its namespace; one goes, its models stay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.waiting import patiently

from demo.cluster import RESOURCE, Cluster, condition, gateway_url
from demo.traffic import chat
from localcluster import audit

pytestmark = [pytest.mark.exclusive, pytest.mark.full]

CHART = Path(__file__).resolve().parents[2] / "charts" / "octavo"
TEAMS = ("team-a", "team-b")
NAME = "ours"
QUESTION = {"model": NAME, "messages": [{"role": "user", "content": "Name the capital of France."}], "max_tokens": 8}

ASK = """
import sys, urllib.request
kind = {"Content-Type": "application/json"}
request = urllib.request.Request("http://localhost:8000/v1/chat/completions", sys.argv[1].encode(), kind)
print(urllib.request.urlopen(request).read().decode())
"""


def release(cluster: Cluster, system: str, team: str) -> None:
    """Installs Octavo for one namespace, with the images of the shared installation."""
    values = json.loads(cluster.run_helm("get", "values", "octavo", "-n", system, "-o", "json"))
    images = [
        f"{part}.image.{field}={value}"
        for part in ("operator", "gateway", "serverCpu")
        for field, value in values[part]["image"].items()
    ]
    own = ["rbac.scope=namespace", "rbac.aggregatedRoles=false", "crds.enabled=false"]
    settings = [*own, "operator.replicas=1", "gateway.replicas=1", "gateway.drain.delaySeconds=1"]
    flags = [part for setting in settings for part in ("--set", setting)]
    flags += [part for image in images for part in ("--set-string", image)]  # a tag may be of digits alone
    cluster.run_helm("install", "octavo", str(CHART), "-n", team, *flags, "--wait", "--timeout", "8m", timeout=500)


def ready(cluster: Cluster) -> bool:
    resource = cluster.get(RESOURCE, NAME)
    return (condition(resource, "Ready") or {}).get("status") == "True"


@pytest.fixture(scope="module")
def teams(cluster: Cluster, system: str) -> Iterator[dict[str, Cluster]]:
    """A release in each namespace. The shared installation's operator serves all namespaces: it rests meanwhile."""
    cluster.run("scale", "deployment/octavo-operator", "-n", system, "--replicas=0")
    try:
        for team in TEAMS:
            labels = {"pod-security.kubernetes.io/enforce": "restricted"}
            cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team, "labels": labels}})
        patiently(
            "no shared operator",
            lambda: not cluster.items("pods", "app.kubernetes.io/component=operator", system),
            timeout=90,
        )
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda team: release(cluster, system, team), TEAMS))
        yield {team: replace(cluster, namespace=team) for team in TEAMS}
    finally:
        for team in TEAMS:
            cluster.run("delete", RESOURCE, "--all", "-n", team, "--wait=false", check=False)
            cluster.run_helm("uninstall", "octavo", "-n", team, "--ignore-not-found")
            cluster.run("delete", "namespace", team, "--ignore-not-found", "--wait=false")
        cluster.run("scale", "deployment/octavo-operator", "-n", system, "--replicas=2")
        patiently(
            "shared operator",
            lambda: (cluster.get("deployment", "octavo-operator", system) or {})["status"].get("readyReplicas") == 2,
            timeout=180,
        )


def test_each_release_serves_its_namespace_and_knows_no_other(
    teams: dict[str, Cluster], example: str, data: Path, direct: bool
) -> None:
    ours, theirs = teams["team-a"], teams["team-b"]
    for team in teams.values():
        kinds = {each["kind"] for each in manifest(team)}
        assert "Role" in kinds
        assert not {kind for kind in kinds if kind.startswith(("Cluster", "CustomResource"))}

    resource: dict[str, Any] = yaml.safe_load(example)
    resource["metadata"]["name"] = NAME
    resource["spec"].pop("autoscaling", None)
    ours.apply(resource)
    theirs.apply({**resource, "metadata": {"name": "idle"}, "spec": {**resource["spec"], "suspend": True}})
    patiently("ready", lambda: ready(ours), timeout=240)
    patiently("seen", lambda: condition(theirs.get(RESOURCE, "idle"), "Ready"), timeout=60)
    with gateway_url(ours, "team-a", direct=direct) as url:
        assert chat(url, QUESTION).complete
    with gateway_url(theirs, "team-b", direct=direct) as url:
        assert chat(url, QUESTION).status == 404

    for home, other in (TEAMS, TEAMS[::-1]):
        for account in ("octavo-operator", "octavo-gateway"):
            user = f"system:serviceaccount:{home}:{account}"
            asked = [request for request in audit.requests(data) if request.user == user]
            assert asked, user
            assert {request.namespace for request in asked} == {home}
            assert not [request for request in asked if not request.allowed]
            answer = ours.run("auth", "can-i", "list", "services", "-n", other, f"--as={user}", check=False)
            assert "yes" not in answer


def test_models_outlive_the_release_and_the_next_one_adopts_them(
    teams: dict[str, Cluster], system: str, direct: bool
) -> None:
    ours = teams["team-a"]
    (pod,) = ours.ready_pods(NAME)
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    ours.run_helm("uninstall", "octavo", "-n", "team-a", "--wait")
    assert not ours.items("deployments", "app.kubernetes.io/instance=octavo")
    assert (ours.get(RESOURCE, NAME) or {})["spec"]
    # From inside: nobody else may reach it now.
    answer = json.loads(ours.run("exec", "-n", "team-a", name, "--", "python", "-c", ASK, json.dumps(QUESTION)))
    assert answer["choices"][0]["message"]["content"]

    release(ours, system, "team-a")
    (kept,) = ours.ready_pods(NAME)
    assert kept["metadata"]["uid"] == uid
    # The new operator does its work: a changed spec reaches the children it found.
    ours.run(
        "patch",
        RESOURCE,
        NAME,
        "--type=merge",
        "-n",
        "team-a",
        "-p",
        '{"spec":{"availability":{"podDisruptionBudget":false}}}',
    )
    patiently(
        "budget gone", lambda: not ours.items("poddisruptionbudgets", f"octavo.dev/llmdeployment={NAME}"), timeout=90
    )
    patiently("ready", lambda: ready(ours), timeout=60)
    assert [each["metadata"]["uid"] for each in ours.ready_pods(NAME)] == [uid]
    with gateway_url(ours, "team-a", direct=direct) as url:
        assert chat(url, QUESTION).complete


def manifest(team: Cluster) -> list[dict[str, Any]]:
    text = team.run_helm("get", "manifest", "octavo", "-n", team.namespace)
    return [document for document in yaml.safe_load_all(text) if document]
