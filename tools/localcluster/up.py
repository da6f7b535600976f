"""Starts a cluster: record, keys and files, cgroup, namespaces, link, images, DNS; shows the time of each stage."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from localcluster import (
    audit,
    cgroups,
    components,
    config,
    controlplane,
    dns,
    host,
    kube,
    pki,
    processes,
    record,
    supervisor,
)
from localcluster import node as node_process
from localcluster.addresses import Addresses, choose
from localcluster.down import cgroup_name, config_file, tear_down
from localcluster.errors import ClusterError
from localcluster.record import Record
from toolbox import images
from toolbox.build import ensure, program
from toolbox.catalog import NODE, TOOLS_FOLDER
from toolbox.deps import CONTROL_PLANE, require
from toolbox.paths import cache_root
from toolbox.progress import Progress


def up(
    name: str,
    data: Path | None,
    network: int | None,
    *,
    control_plane_only: bool,
    progress: Progress,
    audit_policy: str | None = None,
) -> Record:
    """Starts the cluster `name` and returns its record; after a ClusterError or ToolError nothing remains.

    `audit_policy`: text of the audit policy for a node's API server; see `audit.requests`.
    """
    record.check_name(name)
    if control_plane_only:
        require(CONTROL_PLANE)
    else:
        host.require_node()
    with record.held(name):
        _clear_remains(name, progress)
        chosen = (data or record.default_data(name)).resolve()
        host.check_empty(chosen)
        if not control_plane_only:
            host.check_node_data(chosen)
            ensure(NODE, progress)
            images.node_images(progress)
        current = _reserve(name, chosen, network, control_plane_only=control_plane_only)
        try:
            if control_plane_only:
                current = _start_control_plane(current, progress)
            else:
                _start_node(current, progress, audit_policy)
        except BaseException:
            # Also for Ctrl-C. If this process is killed, the next `up` or `down` removes the cluster.
            tear_down(current)
            raise
        complete = Record(current.name, current.data, current.network, current.server, up=True)
        complete.save()
        return complete


def _clear_remains(name: str, progress: Progress) -> None:
    found = record.load(name)
    if found is None:
        return
    if found.up and processes.keepers(config_file(found)):
        raise ClusterError(f"cluster {name} is already up: {found.server} (kubeconfig {found.kubeconfig})")
    with progress.step(f"remove the remains of an earlier cluster {name}"):
        tear_down(found)


def _reserve(name: str, data: Path, network: int | None, *, control_plane_only: bool) -> Record:
    with record.all_held():
        if control_plane_only:
            current = Record(name, data, None, "")
        else:
            reserved = [other.network for other in record.load_all() if other.network is not None]
            addresses = choose(network, host.routes(), reserved)
            current = Record(name, data, addresses.network, addresses.server)
        current.save()
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    return current


def _start_control_plane(current: Record, progress: Progress) -> Record:
    with progress.step("API server"):
        process = controlplane.launch(current.data, lifeline=None)
        plane = controlplane.wait_ready(current.data, process)
    return Record(current.name, current.data, None, plane.server)


def _start_node(current: Record, progress: Progress, audit_policy: str | None) -> None:
    addresses = Addresses(current.network or 0)
    cgroup = cgroup_name(current)
    with progress.step("keys and configuration"):
        if audit_policy is not None:
            (current.data / audit.POLICY_FILE).write_text(audit_policy, encoding="utf-8")
        keys = _write_files(current.data, addresses, current.name, cgroup)
    api = kube.connect(addresses.server, keys)
    with progress.step("namespaces and network"):
        cgroups.create(cgroup)
        process = _unshare(current)
        _connect(current, addresses, process)

    def failed() -> str | None:
        if process.poll() is not None:
            return f"the node's first process exited:\n{supervisor.log_tail(current.data, 'node')}"
        return supervisor.crash_report(current.data)

    with progress.step("images for pods and DNS"):
        kube.wait("containerd", lambda: _containerd_listens(current), 60, failed)
        _import(current, images.node_images(progress))
    with progress.step("API server"):
        kube.wait("API server", api.ready, 120, failed)
    with progress.step("node Ready"):
        kube.wait("node", lambda: kube.node_ready(api, components.NODE_NAME), 120, failed)
    with progress.step("DNS Ready"):
        for path, manifest in dns.manifests(addresses.dns, images.coredns_image()):
            api.apply(path, manifest)
        kube.wait("DNS", lambda: _deployment_ready(api, dns.READY), 120, failed)


def _write_files(data: Path, addresses: Addresses, name: str, cgroup: str) -> pki.Pki:
    (data / "log").mkdir()
    keys = pki.create(
        data / "pki",
        {
            "apiserver": (
                "/CN=kube-apiserver",
                [f"IP:{ip}" for ip in ("127.0.0.1", addresses.node, addresses.api_service)]
                + [f"DNS:{dns_name}" for dns_name in _api_names()],
            ),
            "kubelet-server": (
                f"/O=system:nodes/CN=system:node:{components.NODE_NAME}",
                [f"IP:{addresses.node}", f"DNS:{components.NODE_NAME}"],
            ),
        },
        {
            "admin": "/O=system:masters/CN=admin",
            "apiserver-kubelet": "/O=system:masters/CN=kube-apiserver-kubelet-client",
            "front-proxy": "/CN=front-proxy-client",
            "kubelet": f"/O=system:nodes/CN=system:node:{components.NODE_NAME}",
            "kube-controller-manager": "/CN=system:kube-controller-manager",
            "kube-scheduler": "/CN=system:kube-scheduler",
            "kube-proxy": "/CN=system:kube-proxy",
        },
    )
    for user in ("admin", "kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy"):
        pki.write_kubeconfig(data / f"{user}.kubeconfig", keys, user, addresses.server, f"octavo-{name}")
    # The images outlive the cluster: the next one of this name need not push them again.
    storage = registry_storage(name)
    storage.mkdir(parents=True, exist_ok=True)
    programs = {each: program(each) for each in NODE}
    files = {
        "containerd.toml": config.containerd(
            data, snapshotter=host.snapshotter(data), restrict_oom_score=host.lacks_sys_resource()
        ),
        f"registry/{config.REGISTRY_NAME}/hosts.toml": config.registry_hosts(addresses),
        "registry.yaml": config.registry(storage, addresses),
        "cni/10-octavo.conflist": config.cni(data, addresses),
        "kubelet.json": config.kubelet(data, addresses, cgroup),
        node_process.CONFIG_FILE: json.dumps(
            {
                "data": str(data),
                "network": addresses.network,
                "commands": components.node(programs, data, addresses, audited=(data / audit.POLICY_FILE).exists()),
            }
        ),
    }
    for path, text in files.items():
        (data / path).parent.mkdir(parents=True, exist_ok=True)
        (data / path).write_text(text, encoding="utf-8")
    return keys


def registry_storage(name: str) -> Path:
    """The storage folder of the registry for clusters of this name."""
    return cache_root() / "registry" / name


def _api_names() -> Iterable[str]:
    return "localhost", "kubernetes", *(f"kubernetes.default{end}" for end in ("", ".svc", ".svc.cluster.local"))


def _unshare(current: Record) -> subprocess.Popen[bytes]:
    shim = program("containerd-shim-runc-v2").parent  # containerd finds it on PATH
    path = f"{shim}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    namespaces = "--mount --net --pid --uts --ipc --fork --kill-child --mount-proc --propagation slave"
    with (current.data / "log" / "node.log").open("ab") as log:
        return subprocess.Popen(
            ["unshare", *namespaces.split(), sys.executable, "-m", "localcluster.node", str(config_file(current))],
            cwd="/",
            env={"PATH": path, "PYTHONPATH": str(TOOLS_FOLDER), "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/root"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _connect(current: Record, addresses: Addresses, process: subprocess.Popen[bytes]) -> None:
    """Creates the veth pair and the host's routes to pods and Services."""

    def failed() -> str | None:
        return None if process.poll() is None else supervisor.log_tail(current.data, "node")

    kube.wait("namespaces", lambda: processes.node_init(config_file(current)) is not None, 30, failed)
    init = processes.node_init(config_file(current))
    host.ip(
        "link", "add", addresses.link, "type", "veth", "peer", "name", node_process.LINK, "netns", str(init),
    )  # fmt: skip
    # The alias identifies the owner: only links with the data folder's path as alias are ever removed.
    host.ip("link", "set", addresses.link, "alias", str(current.data))
    host.ip("address", "add", f"{addresses.host}/30", "dev", addresses.link)
    host.ip("link", "set", addresses.link, "up")
    for destination in (addresses.pods, addresses.services):
        host.ip("route", "add", destination, "via", addresses.node)


def _containerd_listens(current: Record) -> bool:
    # Until containerd is started, the namespace's /run may be the host's, with the socket of another containerd.
    if "containerd" not in supervisor.read_state(current.data):
        return False
    return Path(f"/proc/{processes.node_init(config_file(current))}/root", "run/containerd/containerd.sock").exists()


def _import(current: Record, archives: Iterable[Path]) -> None:
    inside = f"nsenter --target {processes.node_init(config_file(current))} --mount --net --pid --wd=/ --".split()
    ctr = [str(program("ctr")), "--connect-timeout=20s", "--namespace=k8s.io"]
    for archive in archives:
        command = [*inside, *ctr, "images", "import", "--local", str(archive)]
        run = subprocess.run(command, check=False, capture_output=True, text=True)
        if run.returncode:
            raise ClusterError(f"importing {archive.name}: {run.stderr.strip() or run.stdout.strip()}")


def _deployment_ready(api: kube.Api, path: str) -> bool:
    try:
        return bool(api.get(path)["status"].get("readyReplicas"))
    except OSError:
        return False
