"""Memory of the engine process: bytes available by machine and control group, and the planned use."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from octavo_inference.common.errors import ModelError


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Planned memory of the engine process at full use, in bytes.

    With a `device`, weights, KV pool and activations are in device memory, and `available` was free there; swap and
    process are in RAM.
    `process`: interpreter and libraries before the model was loaded; `available`: free memory at that time.
    `weights` includes the embedding, which may stay in the mapped file: its rows are paged in as they are read.
    """

    weights: int = 0
    kv_pool: int = 0
    activations: int = 0
    swap: int = 0
    process: int = 0
    available: int = 0
    device: str = ""

    @property
    def grows(self) -> int:
        """Bytes planned out of `available`."""
        return self.weights + self.kv_pool + self.activations + (0 if self.device else self.swap)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes, from /proc/meminfo and the memory controller of cgroup v2 or v1. `root` is where / is, for tests."""
    found = [_machine(root)]
    groups = _read(root / "proc/self/cgroup").splitlines()
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found += _group(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            found += _group(base, path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return max(0, min(found))


def resident_memory(pid: int) -> int:
    """Resident bytes of a process; 0 if it has ended."""
    fields = _read(Path(f"/proc/{pid}/statm")).split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def require_memory(model: object, needed: int, available: int) -> None:
    """Check, before reading weights, that they fit (bytes). Raises `ModelError`."""
    if needed > available:
        raise ModelError(
            f"{model}: its weights take {needed / 2**30:.2f} GiB of memory, {available / 2**30:.2f} GiB are available "
            "to this process; raise its memory limit, or choose a smaller model or a quantised GGUF of it"
        )


def _machine(root: Path) -> int:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 2**63


def _group(base: Path, path: str, limit_name: str, usage_name: str, reclaimable: str) -> list[int]:
    # Inside a container the control group is mounted at the root, while /proc still shows its path on the host.
    folder = base / path.strip("/")
    if not (folder / limit_name).exists():
        folder = base
    limit, usage = _read(folder / limit_name).strip(), _read(folder / usage_name).strip()
    if not limit.isdigit() or not usage.isdigit():
        return []  # "max": no limit, or no such controller
    match = re.search(rf"^{reclaimable} (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
    return [int(limit) - int(usage) + (int(match[1]) if match else 0)]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
