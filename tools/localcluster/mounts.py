"""Mounts in the node's mount namespace by system call: there are dozens, and mount(8) takes milliseconds each."""

import ctypes
import os
from pathlib import Path

BIND, RECURSIVE, SLAVE, SHARED = 0x1000, 0x4000, 1 << 19, 1 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path | str, kind: str | None = None, flags: int = 0) -> None:
    """The system call mount; raises OSError."""
    arguments = [source.encode(), os.fsencode(target), kind.encode() if kind else None]
    if _LIBC.mount(*arguments, ctypes.c_ulong(flags), None):
        number = ctypes.get_errno()
        raise OSError(number, f"mount on {target}: {os.strerror(number)}")


def bind(source: Path, target: Path) -> None:
    """Bind-mounts `source` at `target`, recursively."""
    mount(str(source), target, flags=BIND | RECURSIVE)


def replace_folders(private: Path, folders: list[Path]) -> None:
    """Mounts private folders of the node (below `private`) over the host's `folders`, and creates none on the host.

    If the host lacks a folder, its parent is replaced by a tmpfs with bind mounts of the same folders plus the new one.
    `/run` must already be a tmpfs of the namespace.
    """
    rebuilt: set[Path] = set()
    for folder in folders:
        own = private / folder.relative_to("/")
        own.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir():
            if folder.parent not in rebuilt:
                _rebuild(folder.parent)
                rebuilt.add(folder.parent)
            folder.mkdir()
        bind(own, folder)


def _rebuild(parent: Path) -> None:
    aside = Path("/run/host") / parent.relative_to("/")
    aside.mkdir(parents=True)
    bind(parent, aside)
    mount("tmpfs", parent, "tmpfs")
    parent.chmod(0o755)
    for entry in aside.iterdir():
        target = parent / entry.name
        if entry.is_symlink():
            target.symlink_to(entry.readlink())
        elif entry.is_dir():
            target.mkdir()
            bind(entry, target)
