"""CoreDNS as an ordinary Deployment behind the Service kube-dns."""

from typing import Any

# `template` returns NXDOMAIN at once for external names, which pods cannot reach; it is last (coredns/main.go).
_COREFILE = """\
.:5353 {
    errors
    health :8080 {
        lameduck 2s
    }
    ready :8181
    prometheus :9153
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        ttl 5
    }
    cache 5
    template ANY ANY . {
        rcode NXDOMAIN
    }
}
"""
_NAMESPACE = "/api/v1/namespaces/kube-system"
_LABELS = {"k8s-app": "kube-dns"}
READY = "/apis/apps/v1/namespaces/kube-system/deployments/coredns"


def manifests(cluster_ip: str, image: str) -> list[tuple[str, dict[str, Any]]]:
    """The objects to apply, each with its path."""
    rbac = "rbac.authorization.k8s.io"
    account = {"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    ports = [
        {"name": "dns", "port": 53, "targetPort": "dns", "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "targetPort": "dns-tcp", "protocol": "TCP"},
    ]
    deployment = {
        "replicas": 1,
        "selector": {"matchLabels": _LABELS},
        "template": {"metadata": {"labels": _LABELS}, "spec": _pod(image)},
    }
    return [
        (f"{_NAMESPACE}/serviceaccounts/coredns", _object("v1", "ServiceAccount", {})),
        (f"{_NAMESPACE}/configmaps/coredns", _object("v1", "ConfigMap", {"data": {"Corefile": _COREFILE}})),
        (
            f"/apis/{rbac}/v1/clusterroles/coredns",
            {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": "coredns"}, "rules": rules},
        ),
        (
            f"/apis/{rbac}/v1/clusterrolebindings/coredns",
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "coredns"},
                "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "coredns"},
                "subjects": [account],
            },
        ),
        (
            f"{_NAMESPACE}/services/kube-dns",
            _object(
                "v1", "Service", {"spec": {"clusterIP": cluster_ip, "selector": _LABELS, "ports": ports}}, "kube-dns"
            ),
        ),
        (READY, _object("apps/v1", "Deployment", {"spec": deployment})),
    ]


def _object(version: str, kind: str, content: dict[str, Any], name: str = "coredns") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "kube-system", "labels": _LABELS}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def _pod(image: str) -> dict[str, Any]:
    return {
        "serviceAccountName": "coredns",
        "priorityClassName": "system-cluster-critical",
        "dnsPolicy": "Default",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "coredns",
                "image": image,
                "imagePullPolicy": "Never",
                "args": ["-conf", "/etc/coredns/Corefile"],
                "ports": [
                    {"name": "dns", "containerPort": 5353, "protocol": "UDP"},
                    {"name": "dns-tcp", "containerPort": 5353, "protocol": "TCP"},
                    {"name": "metrics", "containerPort": 9153, "protocol": "TCP"},
                ],
                "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
                "livenessProbe": {"httpGet": {"path": "/health", "port": 8080}, "failureThreshold": 5},
                "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "170Mi"}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
            }
        ],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }
