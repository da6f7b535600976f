"""The parent cgroup of all pods of a cluster.

Version 2 follows the kernel's cgroup-v2.rst and kubelet's requirements.
"""

import errno
import os
import time
from pathlib import Path

from localcluster.errors import ClusterError

ROOT = Path("/sys/fs/cgroup")
# Controllers that kubelet requires; others (io, hugetlb) are enabled if the kernel has them.
_REQUIRED = {"cpu", "cpuset", "memory", "pids"}


def is_v2(root: Path = ROOT) -> bool:
    """True if `root` is a version 2 hierarchy: only that has a list of controllers at its root."""
    return (root / "cgroup.controllers").is_file()


def create(name: str, root: Path = ROOT) -> None:
    """Creates the folder in every hierarchy; raises ClusterError if the kernel or a container forbids it."""
    try:
        if is_v2(root):
            _create_v2(name, root)
        else:
            for hierarchy in _hierarchies_v1(root):
                _create_v1(hierarchy, name)
    except OSError as error:
        raise ClusterError(
            f"cannot create the cgroup {name} below {root}: {error.strerror} ({error.filename});"
            " in a container, start it privileged with a writable /sys/fs/cgroup"
        ) from error


def remove(name: str, root: Path = ROOT, seconds: float = 10) -> list[Path]:
    """Removes the folders, deepest first, and waits until the kernel releases them; returns those that remain."""
    end = time.monotonic() + seconds
    left = []
    # runc also creates a folder in systemd's version 2 tree, if a version 1 host has one.
    for base in [root] if is_v2(root) else [*_hierarchies_v1(root), root / "unified"]:
        # `walk` with topdown=False lists a folder after everything below it.
        for folder, _, _ in os.walk(base / name, topdown=False):
            while True:
                try:
                    Path(folder).rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    if time.monotonic() > end:
                        left.append(Path(folder))
                        break
                    time.sleep(0.02)
                else:
                    break
    return left


def _hierarchies_v1(root: Path) -> list[Path]:
    # Symbolic links such as cpu -> cpu,cpuacct are the same hierarchy; `unified` is systemd's version 2 tree.
    return [
        path
        for path in sorted(root.iterdir())
        if path.is_dir() and not path.is_symlink() and path.name != "unified" and (path / "cgroup.procs").is_file()
    ]


def _create_v1(hierarchy: Path, name: str) -> None:
    folder = hierarchy / name
    folder.mkdir(exist_ok=True)
    # A new cpuset has no processors and memory nodes, and accepts no processes until they are set.
    for file in ("cpuset.cpus", "cpuset.mems"):
        if (hierarchy / file).is_file():
            (folder / file).write_text((hierarchy / file).read_text(encoding="ascii"), encoding="ascii")


def _create_v2(name: str, root: Path) -> None:
    available = set((root / "cgroup.controllers").read_text(encoding="ascii").split())
    if missing := _REQUIRED - available:
        raise ClusterError(f"the cgroup controllers {', '.join(sorted(missing))} are not available below {root}")
    try:
        _enable_controllers(root)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        # Only in a container: the kernel forbids to enable controllers for children of a cgroup that has processes, so
        # these are moved one level down, as in docker:dind and kind.
        _move_processes(root, root / "init")
        _enable_controllers(root)
    (root / name).mkdir(exist_ok=True)
    _enable_controllers(root / name)


def _enable_controllers(folder: Path) -> None:
    wanted = (folder / "cgroup.controllers").read_text(encoding="ascii").split()
    enabled = (folder / "cgroup.subtree_control").read_text(encoding="ascii").split()
    for controller in wanted:
        if controller not in enabled:
            # One at a time: a rejected controller (cpu, with real-time processes) must not prevent the others.
            (folder / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")


def _move_processes(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for pid in (source / "cgroup.procs").read_text(encoding="ascii").split():
        try:
            (target / "cgroup.procs").write_text(pid, encoding="ascii")
        except ProcessLookupError:
            continue
