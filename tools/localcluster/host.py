"""A node's requirements of the host, and the host's routes and links."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from localcluster.errors import ClusterError
from toolbox import deps

_CAP_SYS_RESOURCE = 24
_MAX_DATA_PATH = 70


def require_node() -> None:
    """Raises ToolError or ClusterError with the missing requirement of a node, and the fix."""
    if os.geteuid() != 0:
        raise ClusterError(
            "a node needs root: run this with sudo, or use --control-plane-only (API server without a node)"
        )
    deps.require(deps.NODE)
    if "\toverlay\n" not in Path("/proc/filesystems").read_text(encoding="ascii"):
        _load("overlay")
    if not Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists():
        _load("br_netfilter")


def check_empty(data: Path) -> None:
    """Raises ClusterError if the data folder is not empty: it will be deleted with the cluster."""
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise ClusterError(f"--data {data}: must be a new or an empty folder (it is deleted with the cluster)")


def check_node_data(data: Path) -> None:
    """Raises ClusterError if the data folder is hidden from the node, or its path is unsuitable."""
    if data.is_relative_to("/run"):
        raise ClusterError(f"--data {data}: must not be below /run, because the node mounts its own /run")
    if re.fullmatch(r"[A-Za-z0-9/._@+-]+", str(data)) is None or len(str(data)) > _MAX_DATA_PATH:
        raise ClusterError(
            f"--data {data}: use at most {_MAX_DATA_PATH} of letters, digits and /._@+- (it becomes part of socket and"
            " mount names); set it, or OCTAVO_STATE, to a shorter one"
        )


def snapshotter(data: Path) -> str:
    """The snapshotter of containerd for a data folder: overlayfs, or native on an overlayfs, which cannot stack."""
    run = subprocess.run(["stat", "-f", "-c", "%T", str(data)], check=True, capture_output=True, text=True)
    return "native" if run.stdout.strip() == "overlayfs" else "overlayfs"


def lacks_sys_resource() -> bool:
    """True if this process lacks CAP_SYS_RESOURCE."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return effective is None or not int(effective[1], 16) >> _CAP_SYS_RESOURCE & 1


def routes() -> list[str]:
    """The destinations of the host's IPv4 routes in all tables, without default routes."""
    run = subprocess.run(
        ["ip", "-json", "-4", "route", "show", "table", "all"], check=True, capture_output=True, text=True
    )
    return [entry["dst"] for entry in json.loads(run.stdout or "[]") if entry["dst"] not in ("default", "unreachable")]


def ip(*arguments: str) -> None:
    """Runs the program ip; raises ClusterError with its error output."""
    run = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if run.returncode:
        raise ClusterError(f"ip {' '.join(arguments)}: {run.stderr.strip()}")


def delete_link(link: str, alias: str) -> None:
    """Deletes the link with this alias; it may also disappear meanwhile, with the namespace of its other end."""
    if link_alias(link) == alias:
        try:
            ip("link", "delete", link)
        except ClusterError:
            if link_alias(link) == alias:
                raise


def link_alias(link: str) -> str | None:
    """The alias of a network link, or None if the link does not exist."""
    run = subprocess.run(["ip", "-json", "link", "show", link], check=False, capture_output=True, text=True)
    return None if run.returncode else str(json.loads(run.stdout)[0].get("ifalias", ""))


def _load(module: str) -> None:
    modprobe = shutil.which("modprobe", path=deps.SEARCH_PATH)
    if modprobe is None:
        raise ClusterError(f"the kernel module {module} is not loaded: modprobe {module} (Debian package kmod)")
    run = subprocess.run([modprobe, module], check=False, capture_output=True, text=True)
    if run.returncode:
        raise ClusterError(f"the required kernel module {module} cannot be loaded: {run.stderr.strip()}")
