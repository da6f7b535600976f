"""PID 1 of the node's namespaces: private mounts, network, components; reaps and restarts.

Run as `python -m localcluster.node CONFIG.json` under unshare(1). Everything it creates is removed with the namespaces,
which end with this process.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from localcluster import components, kube, mounts
from localcluster.addresses import Addresses
from localcluster.pki import Pki
from localcluster.supervisor import Supervisor

CONFIG_FILE = "node.json"
LINK = "eth0"
# Hard-coded paths to which containerd, CNI and kubelet write.
_PRIVATE_FOLDERS = [Path("/var/lib/cni"), Path("/var/lib/kubelet"), Path("/var/log/containers")]
# Kernel settings that kubelet requires and that are not namespaced: files with these values are mounted over them.
_KUBELET_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def _private_mounts(data: Path) -> None:
    # Unmounts on the host propagate here, so that this namespace keeps no mount busy; nothing propagates to the host.
    mounts.mount("none", "/", flags=mounts.SLAVE | mounts.RECURSIVE)
    mounts.mount("tmpfs", "/run", "tmpfs")
    Path("/run").chmod(0o755)
    mounts.replace_folders(data / "root", _PRIVATE_FOLDERS)
    settings = data / "settings"
    settings.mkdir(exist_ok=True)
    for name, value in _KUBELET_SETTINGS.items():
        file = settings / name.replace("/", ".")
        file.write_text(value, encoding="ascii")
        mounts.bind(file, Path("/proc/sys") / name)
    # Mounts by kubelet must propagate to running containers (mountPropagation).
    mounts.mount("none", "/", flags=mounts.SHARED | mounts.RECURSIVE)


def _network(addresses: Addresses) -> None:
    kube.wait("link from the host", lambda: _ip("link", "show", LINK, check=False), 30, lambda: None)
    _ip("link", "set", "lo", "up")
    _ip("address", "add", f"{addresses.node}/30", "dev", LINK)
    _ip("link", "set", LINK, "up")
    _ip("route", "add", "default", "via", addresses.host)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")
    # Traffic between pods on the bridge must pass kube-proxy's rules and the network policies.
    Path("/proc/sys/net/bridge/bridge-nf-call-iptables").write_text("1", encoding="ascii")


def _ip(*arguments: str, check: bool = True) -> bool:
    run = subprocess.run(["ip", *arguments], check=check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return run.returncode == 0


def _main(config_file: Path) -> None:
    config = json.loads(config_file.read_text(encoding="utf-8"))
    data, addresses = Path(config["data"]), Addresses(config["network"])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    os.umask(0o022)
    _private_mounts(data)
    _network(addresses)
    supervisor = Supervisor(data, config["commands"])
    for name in components.FIRST:
        supervisor.start(name)
    api = kube.connect(addresses.server, Pki(data / "pki"))
    rest = [name for name in config["commands"] if name not in components.FIRST]
    tried = 0.0
    while True:
        supervisor.reap()
        supervisor.restart_due()
        if rest and time.monotonic() - tried > 0.1:
            if api.ready():
                while rest:
                    supervisor.start(rest.pop(0))
            tried = time.monotonic()
        time.sleep(0.1)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
