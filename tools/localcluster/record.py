"""The record of a cluster, outside its data folder: sufficient to find and remove the cluster in any state."""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster.errors import ClusterError
from toolbox.paths import state_root

DEFAULT_NAME = "octavo"


@dataclass(frozen=True, slots=True)
class Record:
    """One cluster. The record is written before anything is started, so every started part can be found.

    `network`: the N of its addresses, None for a control plane without a node; `up`: the start is complete.
    """

    name: str
    data: Path
    network: int | None
    server: str
    up: bool = False

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the administrator."""
        return self.data / "admin.kubeconfig"

    def save(self) -> None:
        """Writes the record, replacing an earlier one."""
        path = _folder() / f"{self.name}.json"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps({**asdict(self), "data": str(self.data)}), encoding="utf-8")
        scratch.replace(path)

    def forget(self) -> None:
        """Removes the record."""
        (_folder() / f"{self.name}.json").unlink(missing_ok=True)


def check_name(name: str) -> str:
    """The name, if valid for folders, cgroups and links; otherwise raises ClusterError."""
    if re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", name) is None:
        raise ClusterError(
            f"--name {name!r}: use at most 40 lowercase letters, digits and hyphens, with a letter or digit at each end"
        )
    return name


def default_data(name: str) -> Path:
    """The default data folder of a cluster."""
    return _folder() / name


def load(name: str) -> Record | None:
    """The record of a cluster, or None."""
    try:
        fields = json.loads((_folder() / f"{name}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Record(**{**fields, "data": Path(fields["data"])})


def load_all() -> list[Record]:
    """The records of all clusters of this user."""
    found = [load(path.stem) for path in sorted(_folder().glob("*.json"))]
    return [record for record in found if record is not None]


@contextmanager
def held(name: str) -> Iterator[None]:
    """Holds the cluster's lock; raises ClusterError while another process starts or removes it.

    The kernel releases the lock of a killed process.
    """
    path = _folder() / f"{name}.lock"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ClusterError(f"cluster {name} is being started or removed by another process; try again") from error
        try:
            if not path.exists() or os.fstat(handle.fileno()).st_ino != path.stat().st_ino:
                raise ClusterError(f"cluster {name} has just been removed by another process; try again")
            yield
        finally:
            # The lock file exists only while the cluster does: a process that opened the old one detects it by inode.
            if load(name) is None:
                path.unlink(missing_ok=True)


@contextmanager
def all_held() -> Iterator[None]:
    """Waits for the lock on the choice of network numbers, and holds it."""
    _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(_folder(), os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _folder() -> Path:
    return state_root() / "clusters"
