"""Finds and ends a cluster's processes by their command lines, so that no pid file can be stale or missing."""

import os
import select
import signal
import time
from pathlib import Path

_MODULES = (b"localcluster.node", b"localcluster.supervisor")


def keepers(config: Path) -> list[int]:
    """Process ids of the supervisors with this configuration file, including `unshare`."""
    wanted = os.fsencode(config)
    ids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in ids if _runs(pid, wanted)]


def node_init(config: Path) -> int | None:
    """The process id, on the host, of PID 1 of the node's namespaces, or None."""
    for pid in keepers(config):
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        except OSError:
            continue
        ids = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
        if len(ids) > 1 and ids[-1] == "1":
            return pid
    return None


def kill(config: Path, seconds: float = 30) -> bool:
    """Sends SIGKILL to the supervisors, which also ends all their children; True if all have ended in time.

    The first process of a PID namespace ends only after all others in it.
    """
    wanted = os.fsencode(config)
    handles = []
    for pid in keepers(config):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        handles.append(handle)
        # Checked again with the handle open: the id may have been reused for another process meanwhile.
        if _runs(pid, wanted):
            try:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            except ProcessLookupError:
                continue
    end = time.monotonic() + seconds
    try:
        for handle in handles:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                return False
    finally:
        for handle in handles:
            os.close(handle)
    return True


def _runs(pid: int, config: bytes) -> bool:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return config in arguments and any(module in arguments for module in _MODULES)
