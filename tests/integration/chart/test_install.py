"""The chart on a real API server: accepted, restricted, and its accounts able to do their work and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.support.documents import PAGES, blocks

from localcluster import ControlPlane

from .conftest import CHART, ROOT, SYSTEM, Object, Run


@pytest.fixture(scope="module")
def installed(api: ControlPlane, run: Run) -> Iterator[ControlPlane]:
    """The release `octavo` in a namespace that enforces the restricted Pod Security standard."""
    for name in (SYSTEM, "other"):
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        run("kubectl", "apply", "-f", "-", stdin=json.dumps(namespace), kubeconfig=api.kubeconfig)
    run("helm", "install", "octavo", CHART, "--namespace", SYSTEM, kubeconfig=api.kubeconfig)
    crd = "customresourcedefinition/llmdeployments.octavo.dev"
    run("kubectl", "wait", "--for=condition=Established", "--timeout=30s", crd, kubeconfig=api.kubeconfig)
    yield api
    run("helm", "uninstall", "octavo", "--namespace", SYSTEM, kubeconfig=api.kubeconfig)
    # Kept, and with it the models people run.
    run("kubectl", "get", crd, kubeconfig=api.kubeconfig)


def pods(objects: list[Object]) -> Iterator[Object]:
    """The chart's pods as pods of their own."""
    for found in objects:
        if found["kind"] == "Pod":
            yield found
        elif found["kind"] == "Deployment":
            template = found["spec"]["template"]
            metadata = {**template["metadata"], "name": found["metadata"]["name"], "namespace": SYSTEM}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def test_pods_are_admitted_by_the_restricted_standard(installed: ControlPlane, run: Run, render: Any) -> None:
    for pod in pods(render("gateway.apiKeys.existingSecret=keys")):
        pod["metadata"].pop("annotations", None)
        run("kubectl", "create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod), kubeconfig=installed.kubeconfig)


def test_the_standard_is_really_enforced(installed: ControlPlane, run: Run, render: Any) -> None:
    pod = next(pods(render()))
    del pod["spec"]["containers"][0]["securityContext"]
    with pytest.raises(AssertionError, match="violates PodSecurity"):
        run("kubectl", "create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod), kubeconfig=installed.kubeconfig)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_accepted(installed: ControlPlane, run: Run, path: Any) -> None:
    run("kubectl", "apply", "--dry-run=server", "-n", "other", "-f", path, kubeconfig=installed.kubeconfig)


def documented() -> Iterator[Any]:
    """Objects in documents; KEDA's kinds are not in this cluster."""
    for page in PAGES:
        for block in blocks(page, "yaml"):
            body = yaml.safe_load(block)
            if "apiVersion" in body and "keda" not in body["apiVersion"]:
                yield pytest.param(block, id=f"{page.name}-{body['kind']}-{body['metadata']['name']}")


@pytest.mark.parametrize("text", list(documented()))
def test_objects_in_documents_are_accepted(installed: ControlPlane, run: Run, text: str) -> None:
    run("kubectl", "apply", "--dry-run=server", "-n", "other", "-f", "-", stdin=text, kubeconfig=installed.kubeconfig)


@pytest.mark.parametrize(
    ("account", "verb", "resource", "namespace", "allowed"),
    [
        ("octavo-operator", "watch", "llmdeployments.octavo.dev", "other", True),
        ("octavo-operator", "patch", "llmdeployments.octavo.dev/status", "other", True),
        ("octavo-operator", "patch", "deployments.apps", "other", True),
        ("octavo-operator", "update", "leases.coordination.k8s.io/octavo-operator", SYSTEM, True),
        ("octavo-operator", "update", "leases.coordination.k8s.io/kube-scheduler", "kube-system", False),
        ("octavo-operator", "patch", "llmdeployments.octavo.dev", "other", False),
        ("octavo-operator", "delete", "serviceaccounts", "other", False),
        ("octavo-operator", "get", "secrets", "other", False),
        ("octavo-operator", "create", "pods/exec", "other", False),
        ("octavo-operator", "create", "roles.rbac.authorization.k8s.io", SYSTEM, False),
        ("octavo-gateway", "watch", "endpointslices.discovery.k8s.io", "other", True),
        ("octavo-gateway", "list", "services", "other", True),
        ("octavo-gateway", "get", "secrets", SYSTEM, False),
        ("octavo-gateway", "list", "pods", "other", False),
        ("octavo-gateway", "patch", "services", "other", False),
    ],
)
def test_rights(
    installed: ControlPlane, run: Run, account: str, verb: str, resource: str, namespace: str, *, allowed: bool
) -> None:
    kind, _, rest = resource.partition("/")
    group = kind.partition(".")[2]
    named = group == "coordination.k8s.io"
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{SYSTEM}:{account}",
            "resourceAttributes": {
                "namespace": namespace,
                "verb": verb,
                "group": group,
                "resource": kind.partition(".")[0],
                "name" if named else "subresource": rest,
            },
        },
    }
    arguments = ("create", "-f", "-", "-o", "yaml")
    answer = yaml.safe_load(run("kubectl", *arguments, stdin=json.dumps(review), kubeconfig=installed.kubeconfig))
    assert answer["status"]["allowed"] is allowed
