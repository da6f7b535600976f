"""The configuration files of a node, as text. Pure."""

import json
from pathlib import Path

from localcluster.addresses import Addresses
from toolbox.deps import CNI_FOLDER
from toolbox.images import PAUSE

REGISTRY_NAME = "localhost:5000"


def containerd(data: Path, *, snapshotter: str, restrict_oom_score: bool) -> str:
    """The TOML of containerd.

    `restrict_oom_score`: needed without CAP_SYS_RESOURCE, where runc fails to lower a process's OOM score.
    """
    return f"""version = 4
root = "{data}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{data}/opt"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{snapshotter}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "{data}/registry"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = {str(restrict_oom_score).lower()}
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{CNI_FOLDER}"]
  conf_dir = "{data}/cni"
"""


def registry_hosts(addresses: Addresses) -> str:
    """The hosts.toml of containerd: the address of the registry with the name localhost:5000 in manifests."""
    url = f"http://{addresses.registry}"
    return f'server = "{url}"\n[host."{url}"]\n  capabilities = ["pull", "resolve"]\n'


def registry(storage: Path, addresses: Addresses) -> str:
    """The image registry's YAML (as JSON)."""
    return json.dumps(
        {
            "version": 0.1,
            "log": {"level": "error", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(storage)}, "delete": {"enabled": True}},
            "http": {"addr": addresses.registry},
        }
    )


def cni(data: Path, addresses: Addresses) -> str:
    """The CNI configuration: a bridge for pods, with host-local address management."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "mtu": 1400,
        "ipam": {
            "type": "host-local",
            "dataDir": f"{data}/ipam",
            "ranges": [[{"subnet": addresses.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": "octavo", "plugins": [bridge, portmap]})


def kubelet(data: Path, addresses: Addresses, cgroup: str) -> str:
    """The configuration of kubelet."""
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            # All pods below one folder, for clean removal and isolation from another kubelet on this machine.
            "cgroupRoot": f"/{cgroup}",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{data}/pki/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{data}/pki/kubelet-server.crt",
            "tlsPrivateKeyFile": f"{data}/pki/kubelet-server.key",
            "clusterDomain": "cluster.local",
            "clusterDNS": [addresses.dns],
            "resolvConf": "",
            "podLogsDir": f"{data}/log/pods",
            # The node presents the kernel settings that kubelet requires (see node.py), so kubelet does not set them.
            "protectKernelDefaults": True,
            "failSwapOn": False,
            "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "nodeStatusUpdateFrequency": "4s",
            "syncFrequency": "10s",
            "serializeImagePulls": False,
        }
    )
