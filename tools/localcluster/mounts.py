"""Mounts inside the node's mount namespace, by system call: there are dozens, and mount(8) costs milliseconds each."""

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
    """Shows `source` also at `target`."""
    mount(str(source), target, flags=BIND | RECURSIVE)


def replace_folders(private: Path, folders: list[Path]) -> None:
    """Puts folders of the node's own (below `private`) over the host's `folders`, without making any on the host.

    Where the host lacks one, its parent is shown again as a tmpfs that holds the same folders, bound one by one, and
    the new one. `/run` has to be a tmpfs of the namespace already.
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
