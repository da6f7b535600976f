"""Renders the NetworkPolicies of one node as one nftables table. Pure.

Semantics of the NetworkPolicy v1 API reference: a pod is isolated in a direction if at least one policy selects it
there; then only traffic that some policy allows passes. The rules apply after kube-proxy has replaced a Service's
address and port with the pod's. IPv4 only, like the node.
"""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]
TABLE = "octavo-network-policy"
_ESTABLISHED = "ct state established,related accept"


@dataclass(frozen=True, slots=True)
class _Pod:
    namespace: str
    labels: Mapping[str, str]
    ip: str
    ports: frozenset[tuple[str, str, int]]  # name, protocol, number


@dataclass(frozen=True, slots=True)
class _Direction:
    """The fields of a policy, and the addresses of a packet, for one direction."""

    kind: str
    rules: str
    peers: str
    own: str
    other: str


_INGRESS = _Direction("Ingress", "ingress", "from", own="daddr", other="saddr")
_EGRESS = _Direction("Egress", "egress", "to", own="saddr", other="daddr")


@dataclass(frozen=True, slots=True)
class _Cluster:
    pods: Sequence[_Pod]
    namespaces: Mapping[str, Mapping[str, str]]

    def select(self, peer: Object, home: str) -> list[_Pod]:
        """The pods that a peer of a policy in namespace `home` selects."""
        return [pod for pod in self.pods if self._in_namespace(pod, peer, home) and _matches_pod(peer, pod)]

    def _in_namespace(self, pod: _Pod, peer: Object, home: str) -> bool:
        if (selector := peer.get("namespaceSelector")) is None:
            return pod.namespace == home
        return matches(selector, self.namespaces.get(pod.namespace, {}))


def render(policies: Sequence[Object], pods: Sequence[Object], namespaces: Sequence[Object]) -> str:
    """An `nft -f` script that replaces the table atomically."""
    cluster = _Cluster(
        [_pod(pod) for pod in pods if _has_own_address(pod)],
        {each["metadata"]["name"]: each["metadata"].get("labels") or {} for each in namespaces},
    )
    chains: dict[tuple[str, str], list[str]] = {}
    for policy in policies:
        home, spec = policy["metadata"]["namespace"], policy["spec"]
        kinds = _kinds(spec)
        for pod in cluster.select({"podSelector": spec.get("podSelector") or {}}, home):
            for direction in (_INGRESS, _EGRESS):
                if direction.kind in kinds:
                    # A pod can always reach itself, also through a Service.
                    chain = chains.setdefault((direction.rules, pod.ip), [f"ip {direction.other} {pod.ip} return"])
                    for rule in spec.get(direction.rules) or []:
                        chain.extend(_allow(rule, direction, pod, home, cluster))
    return _table(chains)


def matches(selector: Object, labels: Mapping[str, str]) -> bool:
    """True if a label selector (all of matchLabels and matchExpressions) selects these labels."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_expression_holds(each, labels) for each in selector.get("matchExpressions") or [])


def _expression_holds(expression: Object, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _matches_pod(peer: Object, pod: _Pod) -> bool:
    return matches(peer.get("podSelector") or {}, pod.labels)


def _has_own_address(pod: Object) -> bool:
    running = pod["status"].get("phase") in ("Pending", "Running")
    return running and bool(pod["status"].get("podIP")) and not pod["spec"].get("hostNetwork")


def _pod(pod: Object) -> _Pod:
    # Sidecars are init containers that keep running, so their ports count, too.
    containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]
    ports = frozenset(
        (port["name"], port.get("protocol", "TCP"), port["containerPort"])
        for container in containers
        for port in container.get("ports", [])
        if port.get("name")
    )
    meta = pod["metadata"]
    return _Pod(meta["namespace"], meta.get("labels") or {}, pod["status"]["podIP"], ports)


def _kinds(spec: Object) -> list[str]:
    default = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    return spec.get("policyTypes") or default


def _allow(rule: Object, direction: _Direction, pod: _Pod, home: str, cluster: _Cluster) -> Iterator[str]:
    for match_peer, targets in _peers(rule.get(direction.peers), direction, home, cluster):
        # A named port is looked up on the receiving side.
        receivers = [pod] if direction is _INGRESS else targets
        for match_port in _ports(rule.get("ports"), receivers):
            yield " ".join(filter(None, [match_peer, match_port, "return"]))


def _peers(
    peers: Sequence[Object] | None, direction: _Direction, home: str, cluster: _Cluster
) -> Iterator[tuple[str, Sequence[_Pod]]]:
    if not peers:
        yield "", cluster.pods
    for peer in peers or ():
        if block := peer.get("ipBlock"):
            if ipaddress.ip_network(block["cidr"], strict=False).version == 4:
                excluded = ", ".join(block.get("except") or [])
                exception = f" ip {direction.other} != {{ {excluded} }}" if excluded else ""
                yield f"ip {direction.other} {block['cidr']}{exception}", ()
        elif selected := cluster.select(peer, home):
            yield f"ip {direction.other} {{ {', '.join(sorted(pod.ip for pod in selected))} }}", selected


def _ports(ports: Sequence[Object] | None, receivers: Sequence[_Pod]) -> Iterator[str]:
    if not ports:
        yield ""
    for port in ports or ():
        protocol = port.get("protocol", "TCP")
        number = port.get("port")
        if number is None:
            yield f"meta l4proto {protocol.lower()}"
        elif isinstance(number, int):
            last = f"-{port['endPort']}" if port.get("endPort") else ""
            yield f"{protocol.lower()} dport {number}{last}"
        else:
            for pod in sorted(receivers, key=lambda each: each.ip):
                for name, kind, value in sorted(pod.ports):
                    if (name, kind) == (number, protocol):
                        yield f"ip daddr {pod.ip} {protocol.lower()} dport {value}"


def _table(chains: Mapping[tuple[str, str], Sequence[str]]) -> str:
    # Declared before the deletion, which would fail without the table.
    lines = [f"table ip {TABLE} {{}}", f"delete table ip {TABLE}", f"table ip {TABLE} {{"]
    for (name, ip), rules in sorted(chains.items()):
        lines += [f" chain {_chain(name, ip)} {{"]
        lines += [f"  {rule}" for rule in dict.fromkeys(rules)]
        lines += ["  counter drop", " }"]
    for direction in (_EGRESS, _INGRESS):
        lines += [f" chain {direction.rules} {{"]
        for name, ip in sorted(chains):
            if name == direction.rules:
                lines.append(f"  ip {direction.own} {ip} jump {_chain(name, ip)}")
        lines += [" }"]
    # Traffic to the node itself (API server) passes `input`. kubelet's probes pass `output`, which is not filtered.
    lines += [
        f" chain forward {{ type filter hook forward priority -5; {_ESTABLISHED}; jump egress; jump ingress; }}",
        f" chain input {{ type filter hook input priority -5; {_ESTABLISHED}; jump egress; }}",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _chain(direction: str, ip: str) -> str:
    return f"{direction}-{ip.replace('.', '-')}"
