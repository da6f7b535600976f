"""The command lines of the components. Pure."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster import audit
from localcluster.addresses import Addresses
from localcluster.pki import Pki


def etcd(program: Path, data: Path, client_port: int, peer_port: int) -> list[str]:
    """An etcd on loopback, without fsync, because the cluster is disposable."""
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    return [
        str(program),
        f"--data-dir={data / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


@dataclass(frozen=True, slots=True)
class ApiServer:
    """The settings that differ between API servers."""

    address: str
    port: int
    etcd_port: int
    services: str


def kube_apiserver(program: Path, pki: Pki, settings: ApiServer) -> list[str]:
    """A kube-apiserver with certificates for everything, RBAC, no anonymous requests."""
    return [
        str(program),
        f"--etcd-servers=http://127.0.0.1:{settings.etcd_port}",
        f"--service-cluster-ip-range={settings.services}",
        f"--bind-address={settings.address}",
        f"--advertise-address={settings.address}",
        f"--secure-port={settings.port}",
        f"--tls-cert-file={pki.crt('apiserver')}",
        f"--tls-private-key-file={pki.key('apiserver')}",
        f"--client-ca-file={pki.crt('ca')}",
        f"--service-account-key-file={pki.folder / 'sa.pub'}",
        f"--service-account-signing-key-file={pki.key('sa')}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--authorization-mode=Node,RBAC",
        "--anonymous-auth=false",
        "--allow-privileged=true",
    ]


NODE_NAME = "node-1"
# The components that need no API server; the others are started when it is ready.
FIRST = ("etcd", "containerd", "kube-apiserver", "registry")


def node(
    programs: Mapping[str, Path], data: Path, addresses: Addresses, *, audited: bool = False
) -> dict[str, list[str]]:
    """The commands of a node by component name; `programs` maps the names of programs to paths.

    `audited`: the API server writes an audit log with the policy in the data folder.
    """
    keys = Pki(data / "pki")
    settings = ApiServer(addresses.node, 6443, 2379, addresses.services)
    return {
        "etcd": etcd(programs["etcd"], data, 2379, 2380),
        "containerd": [str(programs["containerd"]), f"--config={data / 'containerd.toml'}", "--log-level=warn"],
        "registry": [
            "env",
            "OTEL_TRACES_EXPORTER=none",
            str(programs["registry"]),
            "serve",
            str(data / "registry.yaml"),
        ],
        "kube-apiserver": [
            *kube_apiserver(programs["kube-apiserver"], keys, settings),
            # The second plugin is off by default, but on in stricter clusters, where Octavo must run, too.
            "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
            *(audit.flags(data) if audited else ()),
            f"--kubelet-client-certificate={keys.crt('apiserver-kubelet')}",
            f"--kubelet-client-key={keys.key('apiserver-kubelet')}",
            f"--kubelet-certificate-authority={keys.crt('ca')}",
            # For aggregated APIs (metrics); without it the other components log an error every few seconds.
            f"--requestheader-client-ca-file={keys.crt('ca')}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={keys.crt('front-proxy')}",
            f"--proxy-client-key-file={keys.key('front-proxy')}",
            # So the node's name needs no DNS entry.
            "--kubelet-preferred-address-types=InternalIP",
        ],
        "kube-controller-manager": [
            str(programs["kube-controller-manager"]),
            *_kubeconfigs(data, "kube-controller-manager"),
            f"--service-account-private-key-file={keys.key('sa')}",
            f"--root-ca-file={keys.crt('ca')}",
            f"--cluster-signing-cert-file={keys.crt('ca')}",
            f"--cluster-signing-key-file={keys.key('ca')}",
            "--use-service-account-credentials=true",
            # The default client-side limit delays the start of the controllers: the first Deployment would wait 4 s.
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ],
        "kube-scheduler": [str(programs["kube-scheduler"]), *_kubeconfigs(data, "kube-scheduler")],
        "kubelet": [
            str(programs["kubelet"]),
            f"--config={data / 'kubelet.json'}",
            f"--kubeconfig={data / 'kubelet.kubeconfig'}",
            f"--root-dir={data / 'kubelet'}",
            f"--cert-dir={data / 'pki' / 'kubelet'}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={addresses.node}",
        ],
        "kube-proxy": [
            str(programs["kube-proxy"]),
            f"--kubeconfig={data / 'kube-proxy.kubeconfig'}",
            f"--hostname-override={NODE_NAME}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={addresses.pods}",
            f"--bind-address={addresses.node}",
            # nf_conntrack_max belongs to the host: do not change it.
            "--conntrack-max-per-core=0",
        ],
        "network-policy": [sys.executable, "-m", "localcluster.enforcer", str(data), addresses.server],
    }


def _kubeconfigs(data: Path, user: str) -> list[str]:
    file = data / f"{user}.kubeconfig"
    return [
        f"--kubeconfig={file}",
        f"--authentication-kubeconfig={file}",
        f"--authorization-kubeconfig={file}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
    ]
