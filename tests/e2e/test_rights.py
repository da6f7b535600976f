"""Rights granted = rights used: the audit log of the whole session against the roles that the chart bound.

Runs last. An audited request shows a right only where it needed one by itself; what admission asked for is shown by
`test_owner_references_need_the_right_on_finalizers`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo.cluster import Cluster, ClusterError
from localcluster import audit
from localcluster.rights import Right, compare, granted, table

pytestmark = pytest.mark.exclusive

FINALIZERS = Right("octavo.dev", "llmdeployments/finalizers", "update", "")
KINDS = ("roles", "clusterroles"), ("rolebindings", "clusterrolebindings")


def rights(cluster: Cluster, account: str, system: str) -> set[Right]:
    """By the bindings in the cluster as it is now."""

    def everything(kind: str) -> Iterator[dict[str, object]]:
        yield from json.loads(cluster.run("get", f"{kind}.rbac.authorization.k8s.io", "-A", "-o", "json"))["items"]

    roles, bindings = ([found for kind in kinds for found in everything(kind)] for kinds in KINDS)
    return granted(roles, bindings, account, system)


@pytest.mark.parametrize(
    ("account", "by_admission"), [("octavo-operator", {FINALIZERS: "by admission"}), ("octavo-gateway", {})]
)
def test_granted_is_used_and_used_is_granted(
    cluster: Cluster,
    system: str,
    data: Path,
    left_out: str,
    report: Callable[[str, str], None],
    account: str,
    by_admission: dict[Right, str],
) -> None:
    user = f"system:serviceaccount:{system}:{account}"
    requests = [request for request in audit.requests(data) if request.user == user]
    assert requests, f"the audit log has no request of {user}"
    found = compare(rights(cluster, account, system), requests)
    report(f"rights-{account}.md", table(found, by_admission))

    assert not found.missing, found.missing
    assert not [request for request in requests if not request.allowed]
    if left_out:
        pytest.skip(f"NOT COMPARED, granted rights may be unused: this session is without {left_out}")
    assert set(found.unused) == set(by_admission)


def test_owner_references_need_the_right_on_finalizers(cluster: Cluster) -> None:
    """Where OwnerReferencesPermissionEnforcement is on, as here, `blockOwnerDeletion` asks for this right."""
    name, namespace = "owner-references", cluster.namespace
    who = f"--as=system:serviceaccount:{namespace}:{name}"
    owner = {
        "apiVersion": "octavo.dev/v1alpha1", "kind": "LLMDeployment", "name": "none", "uid": "1",
        "blockOwnerDeletion": True,
    }  # fmt: skip
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": [owner]}}
    create = ("create", "-n", namespace, "--dry-run=server", "-f", "-")
    try:
        cluster.run("create", "serviceaccount", name, "-n", namespace)
        cluster.run("create", "role", name, "-n", namespace, "--verb=create", "--resource=configmaps")
        cluster.run(
            "create", "rolebinding", name, "-n", namespace, f"--role={name}", f"--serviceaccount={namespace}:{name}"
        )
        with pytest.raises(ClusterError, match="cannot set blockOwnerDeletion"):
            cluster.run(*create, who, stdin=json.dumps(child))
        rule = {
            "op": "add",
            "path": "/rules/-",
            "value": {"apiGroups": [FINALIZERS.group], "verbs": [FINALIZERS.verb], "resources": [FINALIZERS.resource]},
        }
        cluster.run("patch", "role", name, "-n", namespace, "--type=json", "-p", json.dumps([rule]))
        cluster.run(*create, who, stdin=json.dumps(child))
    finally:
        cluster.run("delete", "serviceaccount,role,rolebinding", name, "-n", namespace, "--ignore-not-found")
