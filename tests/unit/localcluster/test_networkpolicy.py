"""The ruleset as a reader of NetworkPolicies expects it; that packets obey it is shown end to end."""

import shutil
import subprocess
from typing import Any

import pytest

from localcluster.networkpolicy import Object, matches, render


def pod(name: str, ip: str, *, namespace: str = "shop", ports: Any = (), **spec: Any) -> Object:
    containers = [{"ports": [{"name": each, "containerPort": number} for each, number in ports]}]
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"containers": containers, **spec},
        "status": {"phase": "Running", "podIP": ip},
    }


def policy(app: str | None, namespace: str = "shop", **spec: Any) -> Object:
    selector = {} if app is None else {"matchLabels": {"app": app}}
    return {"metadata": {"namespace": namespace}, "spec": {"podSelector": selector, **spec}}


NAMESPACES = [
    {"metadata": {"name": "shop", "labels": {"team": "a"}}},
    {"metadata": {"name": "kube-system", "labels": {"kubernetes.io/metadata.name": "kube-system"}}},
]
WEB, DB = pod("web", "10.1.0.2", ports=[("http", 8080)]), pod("db", "10.1.0.3", ports=[("sql", 5432)])
DNS = pod("dns", "10.1.0.9", namespace="kube-system")
PODS = [WEB, DB, DNS]


def chain(script: str, name: str) -> list[str] | None:
    """The rules of one chain, or None where there is none."""
    lines = [line.strip() for line in script.splitlines()]
    if f"chain {name} {{" not in lines:
        return None
    rest = lines[lines.index(f"chain {name} {{") + 1 :]
    return rest[: rest.index("}")]


def test_without_policies_nothing_is_dropped() -> None:
    script = render([], PODS, NAMESPACES)
    assert "drop" not in script
    assert chain(script, "ingress") == chain(script, "egress") == []


def test_a_policy_that_allows_nothing_isolates_the_pods_of_its_namespace_only() -> None:
    script = render([policy(None, policyTypes=["Ingress", "Egress"])], PODS, NAMESPACES)
    assert chain(script, "ingress-10-1-0-2") == ["ip saddr 10.1.0.2 return", "counter drop"]
    assert chain(script, "egress-10-1-0-3") == ["ip daddr 10.1.0.3 return", "counter drop"]
    assert chain(script, "ingress-10-1-0-9") is None


def test_policy_types_default_to_ingress_and_to_egress_where_it_has_rules() -> None:
    assert chain(render([policy("web")], PODS, NAMESPACES), "egress-10-1-0-2") is None
    assert chain(render([policy("web", egress=[{}])], PODS, NAMESPACES), "egress-10-1-0-2") == [
        "ip daddr 10.1.0.2 return",
        "return",
        "counter drop",
    ]


def test_rules_of_several_policies_add_up() -> None:
    one = policy(
        "db", ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": 5432}]}]
    )
    two = policy("db", ingress=[{"from": [{"ipBlock": {"cidr": "10.9.0.0/16", "except": ["10.9.1.0/24"]}}]}])
    assert chain(render([one, two], PODS, NAMESPACES), "ingress-10-1-0-3") == [
        "ip saddr 10.1.0.3 return",
        "ip saddr { 10.1.0.2 } tcp dport 5432 return",
        "ip saddr 10.9.0.0/16 ip saddr != { 10.9.1.0/24 } return",
        "counter drop",
    ]


def test_a_namespace_selector_and_a_pod_selector_in_one_peer_both_have_to_match() -> None:
    peer = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"app": "dns"}},
    }
    ports = [{"protocol": "UDP", "port": 5353}, {"protocol": "TCP", "port": 5300, "endPort": 5400}]
    script = render([policy("web", egress=[{"to": [peer], "ports": ports}])], PODS, NAMESPACES)
    assert chain(script, "egress-10-1-0-2") == [
        "ip daddr 10.1.0.2 return",
        "ip daddr { 10.1.0.9 } udp dport 5353 return",
        "ip daddr { 10.1.0.9 } tcp dport 5300-5400 return",
        "counter drop",
    ]


def test_a_peer_that_selects_no_pod_allows_nothing() -> None:
    rule = {"from": [{"podSelector": {"matchLabels": {"app": "nobody"}}}]}
    assert chain(render([policy("web", ingress=[rule])], PODS, NAMESPACES), "ingress-10-1-0-2") == [
        "ip saddr 10.1.0.2 return",
        "counter drop",
    ]


def test_a_named_port_is_that_of_the_receiving_pod() -> None:
    into = render([policy("web", ingress=[{"ports": [{"port": "http"}]}])], PODS, NAMESPACES)
    assert "ip daddr 10.1.0.2 tcp dport 8080 return" in (chain(into, "ingress-10-1-0-2") or [])
    out = render([policy("web", egress=[{"ports": [{"port": "sql"}]}])], PODS, NAMESPACES)
    assert "ip daddr 10.1.0.3 tcp dport 5432 return" in (chain(out, "egress-10-1-0-2") or [])
    wrong_protocol = policy("web", ingress=[{"ports": [{"port": "http", "protocol": "UDP"}]}])
    assert chain(render([wrong_protocol], PODS, NAMESPACES), "ingress-10-1-0-2") == [
        "ip saddr 10.1.0.2 return",
        "counter drop",
    ]


def test_pods_on_the_nodes_network_and_finished_pods_are_left_alone() -> None:
    host_pod = pod("host", "10.1.255.2", hostNetwork=True)
    done = {**pod("done", "10.1.0.8"), "status": {"phase": "Succeeded", "podIP": "10.1.0.8"}}
    script = render([policy(None)], [host_pod, done], NAMESPACES)
    assert "10.1.255.2" not in script
    assert "10.1.0.8" not in script


def test_ipv6_blocks_match_nothing_on_an_ipv4_node() -> None:
    rule = {"to": [{"ipBlock": {"cidr": "::/0"}}]}
    assert chain(render([policy("web", egress=[rule])], PODS, NAMESPACES), "egress-10-1-0-2") == [
        "ip daddr 10.1.0.2 return",
        "counter drop",
    ]


@pytest.mark.parametrize(
    ("operator", "values", "expected"),
    [
        ("In", ["a", "b"], True),
        ("In", ["b"], False),
        ("NotIn", ["a"], False),
        ("NotIn", ["b"], True),
        ("Exists", None, True),
        ("DoesNotExist", None, False),
    ],
)
def test_match_expressions(operator: str, values: list[str] | None, expected: bool) -> None:
    expression = {"key": "team", "operator": operator} | ({} if values is None else {"values": values})
    assert matches({"matchExpressions": [expression]}, {"team": "a"}) is expected


def test_not_in_holds_for_a_missing_label_and_in_does_not() -> None:
    assert matches({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}, {})
    assert not matches({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a"]}]}, {})


def test_nft_understands_the_script() -> None:
    if shutil.which("nft") is None:
        pytest.skip("nft is not installed (Debian package nftables)")
    policies = [
        policy(None, policyTypes=["Ingress", "Egress"]),
        policy("web", ingress=[{"ports": [{"port": "http"}, {"protocol": "SCTP"}, {"port": 1, "endPort": 9}]}]),
        policy("db", egress=[{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.2.0.0/16", "10.3.0.0/16"]}}]}]),
    ]
    script = render(policies, PODS, NAMESPACES)
    checked = subprocess.run(["nft", "--check", "-f", "-"], check=False, input=script, capture_output=True, text=True)
    if "Operation not permitted" in checked.stderr:
        pytest.skip("nft --check needs root")
    assert checked.returncode == 0, checked.stderr
