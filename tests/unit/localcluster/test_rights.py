"""Rights held against an audit log: nothing that was used, refused or left over goes unnoticed."""

import json
from pathlib import Path

from localcluster import audit, components
from localcluster.addresses import Addresses
from localcluster.audit import Request
from localcluster.rights import Right, compare, granted, table

USER = "system:serviceaccount:system:worker"
RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["mine"], "verbs": ["get"]},
]


def request(
    verb: str, resource: str, *, group: str = "", namespace: str = "a", name: str = "", code: int = 200
) -> Request:
    return Request(USER, verb, group, resource, namespace, name, code, allowed=True)


def rights(kind: str, namespace: str) -> set[Right]:
    role = {"kind": kind, "metadata": {"name": "r", "namespace": namespace}, "rules": RULES}
    subjects = [{"kind": "ServiceAccount", "name": "worker", "namespace": "system"}]
    binding = {"metadata": {"namespace": namespace}, "roleRef": {"kind": kind, "name": "r"}, "subjects": subjects}
    return granted([role], [binding], "worker", "system")


def test_rights_of_a_role_end_at_its_namespace() -> None:
    assert rights("Role", "a") == {
        Right("", "pods", "list", "a"),
        Right("", "pods", "patch", "a"),
        Right("coordination.k8s.io", "leases", "get", "a", "mine"),
    }
    assert compare(rights("Role", "a"), [request("list", "pods", namespace="b")]).missing == (
        Right("", "pods", "list", "b"),
    )
    assert not compare(rights("ClusterRole", ""), [request("list", "pods", namespace="b")]).missing


def test_somebody_elses_binding_grants_nothing() -> None:
    assert (
        granted([], [{"metadata": {}, "roleRef": {}, "subjects": [{"kind": "User", "name": "worker"}]}], "w", "s")
        == set()
    )


def test_what_nobody_asked_for_is_left_over_and_what_was_asked_without_a_right_is_missing() -> None:
    found = compare(rights("Role", "a"), [request("list", "pods"), request("delete", "pods", name="p")])
    assert found.unused == (Right("", "pods", "patch", "a"), Right("coordination.k8s.io", "leases", "get", "a", "mine"))
    assert found.missing == (Right("", "pods", "delete", "a", "p"),)
    text = table(found, {found.unused[1]: "never by name"})
    assert "| core | pods | list | a | 1 |" in text
    assert "| core | pods | patch | a | **none: granted, not used** |" in text
    assert "| coordination.k8s.io | leases | get | a, only `mine` | never by name |" in text
    assert "| core | pods | delete | a, only `p` | **used, not granted** |" in text


def test_an_apply_that_creates_needs_both_rights() -> None:
    made = compare([], [request("patch", "services", name="s", code=201)]).missing
    assert {right.verb for right in made} == {"patch", "create"}
    assert {right.verb for right in compare([], [request("patch", "services", name="s")]).missing} == {"patch"}


def test_a_name_in_a_rule_covers_that_name_only() -> None:
    lease = {"group": "coordination.k8s.io", "resource": "leases"}
    found = compare(rights("Role", "a"), [request("get", name=name, **lease) for name in ("mine", "yours")])
    assert [right.name for right in found.missing] == ["yours"]


def test_the_log_is_read_as_the_api_server_writes_it(tmp_path: Path) -> None:
    event = {
        "stage": "ResponseComplete",
        "verb": "patch",
        "user": {"username": USER},
        "objectRef": {
            "resource": "llmdeployments", "namespace": "a", "name": "m", "apiGroup": "octavo.dev",
            "subresource": "status",
        },
        "responseStatus": {"code": 403},
        "annotations": {"authorization.k8s.io/decision": "forbid"},
    }  # fmt: skip
    discovery = {**event, "objectRef": None, "requestURI": "/apis"}
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "audit.log").write_text(
        f"{json.dumps(event)}\n{json.dumps(discovery)}\n{json.dumps(event)[:9]}"
    )
    (tmp_path / "log" / "audit-2026-01-01T00-00-00.000.log").write_text(f"{json.dumps(event)}\n")
    expected = Request(USER, "patch", "octavo.dev", "llmdeployments/status", "a", "m", 403, allowed=False)
    assert list(audit.requests(tmp_path)) == [expected, expected]


def test_only_an_audited_node_writes_a_log(tmp_path: Path) -> None:
    programs = {name: Path("/bin") / name for name in _PROGRAMS}
    quiet = components.node(programs, tmp_path, Addresses(245))["kube-apiserver"]
    audited = components.node(programs, tmp_path, Addresses(245), audited=True)["kube-apiserver"]
    assert [flag for flag in audited if flag not in quiet] == audit.flags(tmp_path)
    assert json.loads(audit.policy([USER]))["rules"][-1] == {"level": "None"}


_PROGRAMS = (
    "etcd", "containerd", "registry", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet",
    "kube-proxy",
)  # fmt: skip
